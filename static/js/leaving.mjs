/**
 * Owns what ends with a login in this tab: forms marked data-logout take the unsent turn along.
 */

import { forgetUnsent } from "./outbox.mjs";

for (const form of document.querySelectorAll("form[data-logout]")) {
  form.addEventListener("submit", () => {
    try {
      forgetUnsent(sessionStorage);
    } catch {
      // A browser that forbids storage has kept nothing.
    }
  });
}
