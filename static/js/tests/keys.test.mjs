/** Which key press sends. */

import assert from "node:assert/strict";
import { describe, it } from "node:test";

import { sendsOn } from "../keys.mjs";

const press = (change) => sendsOn({ key: "Enter", keyCode: 13, shiftKey: false, altKey: false, isComposing: false, ...change });

describe("a key press", () => {
  it("sends on Enter", () => assert.equal(press({}), true));
  it("does not send on Shift+Enter or Alt+Enter", () => {
    assert.equal(press({ shiftKey: true }), false);
    assert.equal(press({ altKey: true }), false);
  });
  it("never sends while an input method composes", () => assert.equal(press({ isComposing: true }), false));
  it("never sends on Safari's Enter that ends a composition", () => assert.equal(press({ keyCode: 229 }), false));
  it("does not send on another key", () => assert.equal(press({ key: "a" }), false));
});
