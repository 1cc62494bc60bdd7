import assert from "node:assert/strict";
import { test } from "node:test";

import { csrfToken } from "../csrf.mjs";

const meta = { dataset: { csrf: "csrftoken" }, content: "from the page" };

test("the cookie wins, for another tab may have logged in since the page was made", () => {
  assert.equal(csrfToken(meta, "a=1; csrftoken=from%20the%20cookie; b=2"), "from the cookie");
});

test("without a readable cookie the page's token serves", () => {
  assert.equal(csrfToken(meta, "csrftoken2=another; xcsrftoken=another"), "from the page");
});
