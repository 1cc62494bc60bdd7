/** What one run's answer looks like after any prefix of its events. */

import assert from "node:assert/strict";
import { describe, it } from "node:test";

import { compareIds, isSuperseded, newAnswer, reduce, stateOf } from "../answer.mjs";
import { EVENTFUL, EVENTFUL_TEXT, after, log } from "./fakes.mjs";

const play = (events, answer = newAnswer("r1")) => events.reduce(reduce, answer);

describe("an answer", () => {
  it("is the concatenation of its deltas, begun anew where an epoch does not continue", () => {
    const answer = play(EVENTFUL);
    assert.equal(answer.text, EVENTFUL_TEXT);
    assert.equal(stateOf(answer), "complete");
    assert.equal(answer.ending.message_id, "m1");
  });

  it("keeps its text where a new epoch continues", () => {
    const answer = play(EVENTFUL.slice(0, 8));
    assert.equal(answer.text, "Rome is the capital");
    assert.deepEqual(answer.moved, { reason: "worker_lost", continues: true });
    assert.equal(answer.take, 0);
  });

  it("counts a new take when its text is discarded, so that a view replaces it", () => {
    assert.equal(play(EVENTFUL.slice(0, 9)).text, "");
    assert.equal(play(EVENTFUL).take, 1);
  });

  it("begins anew when the first epoch is started twice, the second time with the whole text", () => {
    const answer = play(
      log(
        ["1-1", "started", { epoch: 1 }],
        ["1-2", "delta", { text: "abc" }],
        ["1-4", "started", { epoch: 1 }],
        ["1-5", "delta", { text: "abcdef" }],
      ),
    );
    assert.equal(answer.text, "abcdef");
  });

  it("ends the same whichever event a connection was lost after", () => {
    for (let cut = 0; cut <= EVENTFUL.length; cut += 1) {
      const before = play(EVENTFUL.slice(0, cut));
      const resumed = play(after(EVENTFUL, before.cursor), before);
      assert.deepEqual(resumed, play(EVENTFUL), `cut after ${cut} events`);
    }
  });

  it("ends the same when a reconnect replays from the start, or from any earlier event", () => {
    for (let cut = 0; cut <= EVENTFUL.length; cut += 1) {
      for (let from = 0; from <= cut; from += 1) {
        const replayed = play(EVENTFUL.slice(from), play(EVENTFUL.slice(0, cut)));
        assert.deepEqual(replayed, play(EVENTFUL), `cut after ${cut}, replayed from ${from}`);
      }
    }
  });

  it("ends the same when it is lost after every single event", () => {
    let answer = newAnswer("r1");
    for (let step = 0; step < EVENTFUL.length; step += 1) {
      answer = reduce(answer, after(EVENTFUL, answer.cursor)[0]);
    }
    assert.deepEqual(answer, play(EVENTFUL));
  });

  it("ignores what a stale epoch says after a newer one started", () => {
    const answer = play([...EVENTFUL.slice(0, 9), ...log(["1-99", "delta", { text: "stale" }])]);
    assert.equal(answer.text, "");
  });

  it("shows where it waits, and no longer once it started", () => {
    assert.equal(play(EVENTFUL.slice(0, 2)).phase, "queued");
    assert.equal(play(EVENTFUL.slice(0, 2)).queue.position, 0);
    assert.equal(play(EVENTFUL.slice(0, 3)).queue, null);
  });

  it("says whether it is degraded, and holds a notice once", () => {
    const twice = play(log(["3-4", "notice", { code: "context_trimmed", text: "Old messages were left out" }]), play(EVENTFUL.slice(0, 11)));
    assert.equal(twice.degraded, true);
    assert.equal(twice.notices.length, 1);
  });

  for (const [type, state] of [["cancelled", "stopped"], ["interrupted", "interrupted"], ["failed", "failed"]]) {
    it(`keeps its partial text when it was ${type}`, () => {
      const answer = play([...EVENTFUL.slice(0, 6), ...log(["1-9", type, { code: "x", text: "why" }])]);
      assert.equal(stateOf(answer), state);
      assert.equal(answer.text, "Rome is the capit");
      assert.equal(answer.ending.text, "why");
    });
  }

  it("goes on past an end that a retry superseded", () => {
    const answer = play(
      log(
        ["1-1", "started", { epoch: 1 }],
        ["1-2", "delta", { text: "old" }],
        ["1-9", "failed", { code: "x", text: "why" }],
        ["2-1", "started", { epoch: 2, reason: "retry", continues: false }],
        ["2-2", "delta", { text: "new" }],
      ),
    );
    assert.equal(stateOf(answer), "streaming");
    assert.equal(answer.text, "new");
    assert.equal(answer.ending, null);
  });

  it("takes a reset although a browser reports it under the id of the frame before", () => {
    const answer = play(EVENTFUL.slice(0, 5));
    assert.equal(reduce(answer, { type: "reset_required", id: answer.cursor, data: {} }).resetRequired, true);
  });

  it("moves its cursor past a type of a later version", () => {
    const answer = play(log(["1-1", "started", { epoch: 1 }], ["1-2", "tool_requested", {}]));
    assert.equal(answer.cursor, "1-2");
  });
});

describe("what a retry has replaced", () => {
  it("is every event of an earlier epoch, and neither the queue's nor a reset", () => {
    const old = log(["0-1", "queued"], ["1-1", "started"], ["1-9", "failed"], ["2-1", "started"], ["1-9", "reset_required"]);
    assert.deepEqual(old.map((event) => isSuperseded(event, 2)), [false, true, true, false, false]);
    assert.deepEqual(old.map((event) => isSuperseded(event, 0)), [false, false, false, false, false]);
  });
});

describe("entry ids", () => {
  it("are ordered by number, epoch first, beyond what a double can hold", () => {
    assert.ok(compareIds("1-9", "1-10") < 0);
    assert.ok(compareIds("2-1", "1-18446744073709551615") > 0);
    assert.ok(compareIds("1-18446744073709551614", "1-18446744073709551615") < 0);
    assert.equal(compareIds("3-4", "3-4"), 0);
  });
});
