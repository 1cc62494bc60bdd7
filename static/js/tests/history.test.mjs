/** Fetching what lies before the list shown. */

import assert from "node:assert/strict";
import { describe, it } from "node:test";

import { History } from "../history.mjs";

/** `total` items, newest first, of which the page shows the newest `shown`; pages of `size`. */
function past({ total, shown, size }) {
  const known = new Set(Array.from({ length: shown }, (_, at) => total - at));
  const asked = [];
  const history = new History({
    load: async (next) => {
      asked.push(next);
      const start = Number(next ?? 0);
      const results = Array.from({ length: Math.min(size, total - start) }, (_, at) => total - start - at);
      return { results, next: start + size < total ? String(start + size) : null };
    },
    take: (results) => {
      const taken = results.filter((item) => !known.has(item));
      taken.forEach((item) => known.add(item));
      return taken.length;
    },
  });
  return { history, known, asked };
}

describe("history", () => {
  it("passes over what is shown already and brings the page before it", async () => {
    const { history, known, asked } = past({ total: 12, shown: 5, size: 5 });
    assert.equal(await history.older(), true);
    assert.equal(known.size, 10);
    assert.deepEqual(asked, [null, "5"]);
  });

  it("says when there is nothing older", async () => {
    const { history, known } = past({ total: 12, shown: 5, size: 5 });
    await history.older();
    assert.equal(await history.older(), false);
    assert.equal(known.size, 12);
  });

  it("can be asked again after a failure, from where it was", async () => {
    let fails = true;
    const history = new History({
      load: async (next) => {
        if (fails) throw new Error("away");
        return { results: [1], next: next === null ? "1" : null };
      },
      take: (results) => results.length,
    });
    await assert.rejects(history.older());
    fails = false;
    assert.equal(await history.older(), true);
  });
});
