/** The words for a wait in line, and which of them are worth saying aloud. */

import assert from "node:assert/strict";
import { describe, it } from "node:test";

import { isNews, queueText, waitText } from "../queueing.mjs";

describe("the place in line", () => {
  it("counts from one, and the first is next", () => {
    const places = [0, 1, 2, 3, 10, 20, 110].map((position) => queueText({ position }));
    assert.deepEqual(places, [
      "Next in line", "2nd in line", "3rd in line", "4th in line", "11th in line", "21st in line", "111th in line",
    ]);
    assert.equal(queueText({ position: 2, wait_seconds: 12 }), "3rd in line, about 12 s");
    assert.equal(queueText({}), "Waiting in line");
  });

  it("says why it got worse", () => {
    assert.match(queueText({ position: 3, wait_seconds: 20, reason: "overtaken" }), /others go first/);
    assert.match(queueText({ position: 3, wait_seconds: 20, reason: "worker_lost" }), /worker that had it was lost/);
    assert.match(queueText({ position: 3, reason: "some_other_reason" }), /some other reason/);
  });
});

describe("a wait", () => {
  it("promises no more exactness than an estimate has", () => {
    assert.deepEqual([0.2, 12.4, 59, 150].map(waitText), ["a moment", "about 12 s", "about 59 s", "about 3 min"]);
    assert.equal(waitText(undefined), "");
    assert.equal(waitText(null), "");
  });
});

describe("what is worth saying aloud", () => {
  it("is the half of the way, the head of the line, and a place that got worse", () => {
    const at = (position, reason) => ({ position, reason });
    assert.ok(isNews(at(4), at(8)));
    assert.ok(isNews(at(0), at(1)));
    assert.ok(isNews(at(9, "overtaken"), at(8)));
    assert.ok(!isNews(at(7), at(8)));
    assert.ok(!isNews(at(8), at(8)));
    assert.ok(!isNews(at(0), at(0)));
    assert.ok(!isNews(null, at(8)));
    assert.ok(!isNews(at(4), null));
  });
});
