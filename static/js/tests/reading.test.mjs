/** Whether the page follows the end of the conversation. */

import assert from "node:assert/strict";
import { describe, it } from "node:test";

import { ReadingPosition } from "../reading.mjs";

const PAGE = { height: 2000, viewport: 500 };

describe("reading", () => {
  it("follows the end until the reader scrolls up", () => {
    const position = new ReadingPosition();
    position.scrolled({ top: 1500, ...PAGE });
    assert.equal(position.following, true);
    position.scrolled({ top: 1400, ...PAGE });
    assert.equal(position.following, false);
  });

  it("is not detached by text that makes the page longer", () => {
    const position = new ReadingPosition();
    position.scrolled({ top: 1500, ...PAGE });
    position.scrolled({ top: 1500, height: 2600, viewport: 500 });
    assert.equal(position.following, true);
  });

  it("stays detached while the reader scrolls about, and attaches at the end", () => {
    const position = new ReadingPosition();
    position.scrolled({ top: 1500, ...PAGE });
    position.scrolled({ top: 900, ...PAGE });
    position.scrolled({ top: 1100, ...PAGE });
    assert.equal(position.following, false);
    position.scrolled({ top: 1490, ...PAGE });
    assert.equal(position.following, true);
  });

  it("attaches when asked to", () => {
    const position = new ReadingPosition();
    position.scrolled({ top: 1500, ...PAGE });
    position.scrolled({ top: 900, ...PAGE });
    position.attach();
    assert.equal(position.following, true);
  });
});
