/** Looking for the title that a model makes of a chat's first answer. */

import assert from "node:assert/strict";
import { describe, it } from "node:test";

import { TitleWatch } from "../titling.mjs";
import { FakeTimers, settle } from "./fakes.mjs";

/** titles: what each look finds, an Error for one that fails; the last stays. */
function watched(...titles) {
  const timers = new FakeTimers();
  const seen = { looks: 0, shown: [] };
  const load = async () => {
    seen.looks += 1;
    const found = titles.length > 1 ? titles.shift() : titles[0];
    if (found instanceof Error) throw found;
    return { id: "c1", title: found };
  };
  const watch = new TitleWatch({
    load,
    show: (chat) => seen.shown.push(chat.title),
    isFinal: (error) => error.message === "gone",
    setTimer: timers.set,
    clearTimer: timers.clear,
  });
  return { watch, timers, seen };
}

describe("looking for a title", () => {
  it("shows one that has come, and looks no more", async () => {
    const { watch, timers, seen } = watched("First words", "A title");
    watch.begin("First words");
    assert.equal(timers.fire(), 2000);
    await settle();
    assert.deepEqual(seen.shown, []);
    assert.equal(timers.fire(), 4000);
    await settle();
    assert.deepEqual(seen.shown, ["A title"]);
    assert.deepEqual(timers.pending, []);
  });

  it("gives up after half a minute", async () => {
    const { watch, timers, seen } = watched("First words");
    watch.begin("First words");
    const waits = [];
    while (timers.pending.length) {
      waits.push(timers.fire());
      await settle();
    }
    assert.deepEqual(waits, [2000, 4000, 8000, 16_000]);
    assert.deepEqual([seen.looks, seen.shown], [4, []]);
  });

  it("goes on past a look that failed, unless the chat is gone", async () => {
    const { watch, timers, seen } = watched(new Error("away"), "A title");
    watch.begin("First words");
    timers.fire();
    await settle();
    timers.fire();
    await settle();
    assert.deepEqual(seen.shown, ["A title"]);
    const deleted = watched(new Error("gone"));
    deleted.watch.begin("First words");
    deleted.timers.fire();
    await settle();
    assert.deepEqual(deleted.timers.pending, []);
  });

  it("ends when another title was seen elsewhere, and not at the same one", () => {
    const { watch, timers } = watched("First words");
    watch.begin("First words");
    watch.seen("First words");
    assert.equal(timers.pending.length, 1);
    watch.seen("Mine");
    assert.deepEqual(timers.pending, []);
  });

  it("shows nothing that arrives after it was stopped", async () => {
    const { watch, timers, seen } = watched("A title");
    watch.begin("First words");
    timers.fire();
    watch.stop();
    await settle();
    assert.deepEqual([seen.looks, seen.shown, timers.pending], [1, [], []]);
  });

  it("begins anew, once, when it is asked to", async () => {
    const { watch, timers, seen } = watched("Second words");
    watch.begin("First words");
    watch.begin("Second words");
    assert.equal(timers.pending.length, 1);
    timers.fire();
    await settle();
    assert.deepEqual(seen.shown, []);
  });
});
