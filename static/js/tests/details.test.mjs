/** What a reader is told of how an answer came to be. */

import assert from "node:assert/strict";
import { describe, it } from "node:test";

import { detailsOf, durationText } from "../details.mjs";

const RUN = {
  pool: "default",
  model: "smollm2",
  epoch: 1,
  usage: { prompt: 1234, cached: 1000, output: 250 },
  timings: { queue_ms: 40, ttft_ms: 2310, total_ms: 61_400, release_ms: null },
  charged: 1484,
  waste: 0,
};

const told = (changes = {}) => Object.fromEntries(detailsOf({ ...RUN, ...changes }).map(({ term, value }) => [term, value]));

describe("an answer's details", () => {
  it("tell its waits, its tokens, its charge, and who gave it", () => {
    assert.deepEqual(told(), {
      "Waited for a worker": "40 ms",
      "First words after": "2.3 s",
      "Ended after": "1 min 1 s",
      Prompt: "1,234 tokens, 1,000 of them cached",
      Answer: "250 tokens",
      Charged: "1,484 tokens",
      Model: "smollm2 (default)",
      Attempts: "1",
    });
  });

  it("tell waste apart from what is paid", () => {
    assert.equal(told({ waste: 1234, epoch: 2 }).Charged, "1,484 tokens, and 1,234 computed in vain that nobody pays");
  });

  it("say what is not known while the answer is under way", () => {
    const active = told({ charged: null, waste: null, timings: { queue_ms: null, ttft_ms: null, total_ms: null } });
    assert.deepEqual([active["Waited for a worker"], active["Ended after"], active.Charged], ["–", "–", "Not yet known"]);
  });

  it("say that a smaller model answered, and which", () => {
    const { Model } = told({ degraded: true, model: "tiny", pool: "small" });
    assert.equal(Model, "tiny (small): answered by a smaller model than you asked for");
  });

  it("count one token as one", () => {
    assert.equal(told({ usage: { prompt: 1, cached: 0, output: 1 } }).Answer, "1 token");
  });
});

describe("a duration", () => {
  it("is as exact as it is short", () => {
    const lines = [0, 999, 1000, 59_940, 59_950, 60_000, 3_725_000].map(durationText);
    assert.deepEqual(lines, ["0 ms", "999 ms", "1.0 s", "59.9 s", "1 min 0 s", "1 min 0 s", "62 min 5 s"]);
  });
});
