/** The words for an answer's state, a wait or a refusal. */

import assert from "node:assert/strict";
import { describe, it } from "node:test";

import { newAnswer, reduce } from "../answer.mjs";
import { queueText, refusalText, remarks, stateLabel, statusText, waitText } from "../labels.mjs";
import { EVENTFUL, log } from "./fakes.mjs";

const play = (events) => events.reduce(reduce, newAnswer("r1"));

describe("the status line", () => {
  it("tells waiting, reading, answering and finished apart", () => {
    const lines = [0, 1, 3, 5, 12].map((count) => statusText(play(EVENTFUL.slice(0, count))));
    assert.deepEqual(lines, [
      "Waiting for the server…",
      "Waiting in the queue, position 2, about 4 s",
      "Reading the conversation…",
      "Answering…",
      "Finished",
    ]);
  });

  it("says that it is stopping until it has stopped", () => {
    assert.equal(statusText(play(EVENTFUL.slice(0, 5)), { stopping: true }), "Stopping…");
    const stopped = play(log(["1-1", "started", { epoch: 1 }], ["1-9", "cancelled", { code: "user", text: "At your request." }]));
    assert.equal(statusText(stopped, { stopping: true }), "Stopped");
  });

  it("gives the server's reason for an end", () => {
    const failed = play(log(["1-9", "failed", { code: "engine", text: "the engine refused the prompt" }]));
    assert.equal(statusText(failed), "Failed: the engine refused the prompt");
  });

  it("says when an answer was cut at its length limit", () => {
    assert.match(statusText(play(log(["1-9", "completed", { finish_reason: "length" }]))), /length limit/);
  });
});

describe("the place in the queue", () => {
  it("counts from one, and says why it was put back", () => {
    assert.equal(queueText({ position: 0, wait_seconds: 0 }), "Waiting in the queue, position 1, a moment");
    assert.match(queueText({ position: 3, wait_seconds: 20, reason: "worker_lost" }), /worker that had it was lost/);
    assert.match(queueText({ position: 3, reason: "some_other_reason" }), /some other reason/);
  });

  it("promises no more exactness than an estimate has", () => {
    assert.deepEqual([0.2, 12.4, 59, 150].map(waitText), ["a moment", "about 12 s", "about 59 s", "about 3 min"]);
    assert.equal(waitText(undefined), "");
  });
});

describe("remarks", () => {
  it("name a reduced service, a move and every notice", () => {
    assert.deepEqual(
      remarks(play(EVENTFUL)).map(({ code }) => code),
      ["degraded", "moved", "context_trimmed"],
    );
  });

  it("tell a continued answer from one that was started again", () => {
    const texts = (events) => remarks(play(events)).map(({ text }) => text).join();
    assert.match(texts(EVENTFUL.slice(0, 8)), /went on/);
    assert.match(texts(EVENTFUL), /started again/);
  });
});

describe("a refusal", () => {
  it("says when to try again, if the server did", () => {
    const refusal = { title: "A limit", detail: "40 of 40 used.", retryAfter: 130 };
    assert.deepEqual(refusalText(refusal), { title: "A limit", detail: "40 of 40 used. Try again in 3 min." });
    assert.equal(refusalText({ ...refusal, retryAfter: null }).detail, "40 of 40 used.");
  });
});

describe("a stored message's label", () => {
  it("is different for every state", () => {
    const labels = ["complete", "stopped", "interrupted", "failed"].map(stateLabel);
    assert.equal(new Set(labels).size, 4);
  });
});
