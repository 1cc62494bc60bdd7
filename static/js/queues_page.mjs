/**
 * Owns the wiring of the operators' page of queues: fetches it anew every few seconds, unless it is told not to.
 */

import { Refresher } from "./refreshing.mjs";

const EVERY_MS = 5000;

const hook = (name) => document.querySelector(`[data-${name}]`);
const region = hook("refreshed");
const choice = hook("refresh-switch");

async function load() {
  const response = await fetch(location.href, { credentials: "same-origin", cache: "no-store" });
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const found = page.querySelector("[data-refreshed]");
  // A login that ran out, or a server's error page.
  if (!found) throw new Error(`HTTP ${response.status}`);
  return found;
}

const refresher = new Refresher({
  everyMs: EVERY_MS,
  parts: {
    load,
    show: (found) => region.replaceChildren(...found.childNodes),
    mayShow: () => document.visibilityState === "visible" && !region.contains(document.activeElement),
    trouble: (isThere) => {
      const text = isThere ? "This is out of date: the server does not give the page." : "";
      if (hook("refresh-trouble").textContent !== text) hook("refresh-trouble").textContent = text;
    },
    setTimer: (action, ms) => setTimeout(action, ms),
    clearTimer: (timer) => clearTimeout(timer),
  },
});

choice.addEventListener("change", () => (choice.checked ? refresher.start() : refresher.stop()));
hook("refresh").hidden = false;
refresher.start();
