/** The words for an answer's state, a wait or a refusal. */

import assert from "node:assert/strict";
import { describe, it } from "node:test";

import { newAnswer, reduce } from "../answer.mjs";
import { refusalText, remarks, stateLabel, statusText, untilText } from "../labels.mjs";
import { EVENTFUL, log } from "./fakes.mjs";

const play = (events) => events.reduce(reduce, newAnswer("r1"));

describe("the status line", () => {
  it("tells waiting, reading, answering and finished apart", () => {
    const lines = [0, 1, 3, 5, 12].map((count) => statusText(play(EVENTFUL.slice(0, count))));
    assert.deepEqual(lines, [
      "Waiting for the server…",
      "2nd in line, about 4 s",
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

  it("says why an answer was stopped that nobody stopped", () => {
    const ended = play(log(["1-9", "cancelled", { code: "unwatched", text: "Nobody was following the answer." }]));
    assert.equal(statusText(ended), "Stopped: nobody was following it");
    assert.equal(stateLabel("stopped", "unwatched"), statusText(ended));
    assert.equal(stateLabel("stopped", "cancelled"), "Stopped");
  });

  it("says when an answer was cut at its length limit", () => {
    assert.match(statusText(play(log(["1-9", "completed", { finish_reason: "length" }]))), /length limit/);
  });
});

describe("remarks", () => {
  it("name a move and every notice", () => {
    assert.deepEqual(
      remarks(play(EVENTFUL)).map(({ code }) => code),
      ["moved", "context_trimmed"],
    );
  });

  it("tell of a smaller model in the server's words", () => {
    const notice = { code: "faster_model", text: "Large is busy: Small answers." };
    const events = log(["1-1", "started", { epoch: 1, degraded: true }], ["1-2", "notice", notice]);
    assert.deepEqual(remarks(play(events)), [notice]);
  });

  it("tell a continued answer from one that was started again", () => {
    const texts = (events) => remarks(play(events)).map(({ text }) => text).join();
    assert.match(texts(EVENTFUL.slice(0, 8)), /went on/);
    assert.match(texts(EVENTFUL), /started again/);
  });
});

describe("the remarks of a retry", () => {
  it("do not excuse that it began anew: the reader wanted that", () => {
    const events = log(["2-1", "started", { epoch: 2, reason: "retry", continues: false }]);
    assert.deepEqual(remarks(play(events)), []);
  });
});

describe("a refusal", () => {
  it("says when to try again, if the server did", () => {
    const refusal = { title: "A limit", detail: "40 of 40 used.", retryAfter: 130 };
    assert.deepEqual(refusalText(refusal), { title: "A limit", detail: "40 of 40 used. Try again in 3 min." });
    assert.equal(refusalText({ ...refusal, retryAfter: null }).detail, "40 of 40 used.");
  });

  it("says how long the wait would have been, where we are full", () => {
    const refusal = { title: "We are full", detail: "No place.", retryAfter: 9, problem: { wait_seconds: 150 } };
    assert.equal(refusalText(refusal).detail, "No place. The wait would have been about 3 min. Try again in 9 s.");
    assert.equal(refusalText({ ...refusal, problem: { wait_seconds: null } }).detail, "No place. Try again in 9 s.");
  });
});

describe("a stored message's label", () => {
  it("is different for every state", () => {
    const labels = ["complete", "stopped", "interrupted", "failed"].map(stateLabel);
    assert.equal(new Set(labels).size, 4);
  });
});

describe("the expected end of a maintenance", () => {
  it("is worded in UTC, as the server does", () => {
    assert.equal(untilText("2026-03-01T13:30:45.5+01:00"), "Expected to be over at 2026-03-01 12:30 UTC");
    assert.deepEqual([null, undefined, "nonsense"].map(untilText), ["", "", ""]);
  });
});
