/**
 * Owns the elements of the site's banner: what the server says to everybody.
 */

import { untilText } from "./labels.mjs";

export class Banner {
  #element;
  #text;
  #until;

  /** element: [data-banner], as the server rendered it. */
  constructor({ element }) {
    this.#element = element;
    this.#text = element.querySelector("[data-banner-text]");
    this.#until = element.querySelector("[data-banner-until]");
  }

  /** Whether the page says that messages are refused. */
  get maintenance() {
    return "maintenance" in this.#element.dataset;
  }

  /** Show what `GET /status` answered: {maintenance, banner: {text, severity, until} | null}. */
  show({ maintenance, banner }) {
    this.#element.setAttribute("role", maintenance ? "alert" : "status");
    this.#element.toggleAttribute("data-maintenance", maintenance);
    this.#element.dataset.severity = banner?.severity ?? "info";
    this.#element.hidden = !banner;
    // Only what changed: setting the same text again would have it read out again.
    replace(this.#text, banner?.text ?? "");
    replace(this.#until, untilText(banner?.until));
    this.#until.hidden = !banner?.until;
  }
}

function replace(element, text) {
  if (element.textContent.trim() !== text) element.textContent = text;
}
