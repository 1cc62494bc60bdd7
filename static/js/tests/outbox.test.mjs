/** The turn that was sent and is not yet accepted. */

import assert from "node:assert/strict";
import { describe, it } from "node:test";

import { Refused, Unreachable } from "../api.mjs";
import { Outbox, forgetUnsent, patiently } from "../outbox.mjs";

function outbox(kept = new Map(), owner = "ada") {
  let ids = 0;
  const storage = {
    getItem: (key) => kept.get(key) ?? null,
    setItem: (key, value) => kept.set(key, value),
    removeItem: (key) => kept.delete(key),
  };
  return new Outbox({ storage, newId: () => `id${kept.size}-${(ids += 1)}`, owner });
}

describe("a turn", () => {
  it("keeps its id until it is accepted", () => {
    const box = outbox();
    const first = box.turn({ content: "Hi", pool: null });
    assert.equal(box.turn({ content: "Hi", pool: null }).clientTurnId, first.clientTurnId);
    box.accepted();
    assert.notEqual(box.turn({ content: "Hi", pool: null }).clientTurnId, first.clientTurnId);
  });

  it("keeps its id after a refusal, for the same text only", () => {
    const box = outbox();
    const first = box.turn({ content: "Hi", pool: null });
    box.keep({ chatId: "c1", turn: first, now: 0 });
    box.forget();
    assert.equal(box.turn({ content: "Hi", pool: null }).clientTurnId, first.clientTurnId);
    assert.notEqual(box.turn({ content: "Hi!", pool: null }).clientTurnId, first.clientTurnId);
  });

  it("is another one for another pool", () => {
    const box = outbox();
    const first = box.turn({ content: "Hi", pool: "small" });
    assert.notEqual(box.turn({ content: "Hi", pool: "big" }).clientTurnId, first.clientTurnId);
  });

  it("survives a reload under its id", () => {
    const kept = new Map();
    const before = outbox(kept);
    const turn = before.turn({ content: "Hi", pool: null });
    before.keep({ chatId: "c1", turn, now: 5 });
    const reloaded = outbox(kept);
    assert.deepEqual(reloaded.left(), { chatId: "c1", turn, at: 5 });
    assert.equal(reloaded.turn({ content: "Hi", pool: null }).clientTurnId, turn.clientTurnId);
  });

  it("is nobody else's, and gone once another account has looked", () => {
    const kept = new Map();
    const mine = outbox(kept);
    mine.keep({ chatId: "c1", turn: mine.turn({ content: "Hi", pool: null }), now: 5 });
    assert.equal(outbox(kept, "eve").left(), null);
    assert.equal(kept.size, 0);
    assert.equal(outbox(kept).left(), null);
  });

  it("goes with a log-out", () => {
    const kept = new Map([["something else", "1"]]);
    const box = outbox(kept);
    box.keep({ chatId: "c1", turn: box.turn({ content: "Hi", pool: null }), now: 5 });
    forgetUnsent({ removeItem: (key) => kept.delete(key) });
    assert.deepEqual([...kept.keys()], ["something else"]);
  });

  it("leaves nothing once it was accepted", () => {
    const kept = new Map();
    const box = outbox(kept);
    box.keep({ chatId: "c1", turn: box.turn({ content: "Hi", pool: null }), now: 5 });
    box.accepted();
    assert.equal(outbox(kept).left(), null);
  });

  it("is sent although the storage is full, and not taken from one that holds something else", () => {
    const full = { getItem: () => "nonsense", setItem: () => { throw new Error("full"); }, removeItem: () => {} };
    const box = new Outbox({ storage: full, newId: () => "id", owner: "ada" });
    box.keep({ chatId: "c1", turn: box.turn({ content: "Hi", pool: null }), now: 0 });
    assert.equal(box.left(), null);
  });
});

describe("patience", () => {
  const refusal = new Refused({ status: 429, problem: {}, retryAfter: null });

  function failing(...errors) {
    const waits = [];
    const action = async () => {
      const error = errors.shift();
      if (error) throw error;
      return "done";
    };
    const run = () => patiently(action, { delays: [1, 2, 4], wait: async (ms) => waits.push(ms) });
    return { run, waits };
  }

  it("tries again while the server cannot be reached", async () => {
    const { run, waits } = failing(new Unreachable(), new Unreachable());
    assert.equal(await run(), "done");
    assert.deepEqual(waits, [1, 2]);
  });

  it("takes a refusal at its word", async () => {
    const { run, waits } = failing(refusal);
    await assert.rejects(run(), refusal);
    assert.deepEqual(waits, []);
  });

  it("ends after its last delay", async () => {
    const { run, waits } = failing(...Array.from({ length: 9 }, () => new Unreachable()));
    await assert.rejects(run(), Unreachable);
    assert.deepEqual(waits, [1, 2, 4]);
  });
});
