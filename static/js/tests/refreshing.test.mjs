/** When a page that watches something fetches itself anew. */

import assert from "node:assert/strict";
import { describe, it } from "node:test";

import { Refresher } from "../refreshing.mjs";
import { FakeTimers, settle } from "./fakes.mjs";

function watched({ fails = [], mayShow = () => true } = {}) {
  const timers = new FakeTimers();
  const seen = { shown: [], troubles: [], loads: 0 };
  const load = async () => {
    seen.loads += 1;
    if (fails.shift()) throw new Error("away");
    return seen.loads;
  };
  const refresher = new Refresher({
    everyMs: 5000,
    parts: {
      load,
      show: (found) => seen.shown.push(found),
      mayShow,
      trouble: (isThere) => seen.troubles.push(isThere),
      setTimer: timers.set,
      clearTimer: timers.clear,
    },
  });
  return { refresher, timers, seen };
}

describe("refreshing", () => {
  it("goes on every few seconds until it is stopped", async () => {
    const { refresher, timers, seen } = watched();
    refresher.start();
    for (const expected of [1, 2]) {
      assert.equal(timers.fire(), 5000);
      await settle();
      assert.equal(seen.shown.at(-1), expected);
    }
    refresher.stop();
    assert.deepEqual(timers.pending, []);
  });

  it("says when it fails, and goes on", async () => {
    const { refresher, timers, seen } = watched({ fails: [true] });
    refresher.start();
    timers.fire();
    await settle();
    timers.fire();
    await settle();
    assert.deepEqual(seen.troubles, [true, false]);
    assert.deepEqual(seen.shown, [2]);
  });

  it("leaves the page alone while the reader is in the middle of something", async () => {
    const { refresher, timers, seen } = watched({ mayShow: () => false });
    refresher.start();
    timers.fire();
    await settle();
    assert.equal(seen.loads, 0);
    assert.equal(timers.pending.length, 1);
  });

  it("shows nothing that arrives after it was stopped", async () => {
    const { refresher, timers, seen } = watched();
    refresher.start();
    timers.fire();
    refresher.stop();
    await settle();
    assert.deepEqual(seen.shown, []);
    assert.deepEqual(timers.pending, []);
  });
});
