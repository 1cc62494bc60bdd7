/**
 * Owns the composer's elements: the text, the pool, Send and Stop.
 */

import { sendsOn } from "./keys.mjs";

const MIRRORED = 4000; // Characters: enough to reach the composer's largest height, and cheap to lay out.

export class Composer {
  #form;
  #input;
  #mirror;
  #send;
  #stop;
  #pool;
  #poolChosen = false;
  #onSubmit;
  #activity = "idle";
  #takesFocus;

  /** takesFocus: false where focus would bring up a keyboard on the screen. */
  constructor({ form, takesFocus, onSubmit, onStop }) {
    this.#takesFocus = takesFocus;
    this.#onSubmit = onSubmit;
    this.#form = form;
    this.#input = form.querySelector("[data-composer-input]");
    this.#mirror = form.querySelector("[data-composer-mirror]");
    this.#send = form.querySelector("[data-send]");
    this.#stop = form.querySelector("[data-stop]");
    this.#pool = form.querySelector("[data-pool]");
    this.#input.addEventListener("input", () => this.#typed());
    this.#input.addEventListener("keydown", (event) => {
      if (!sendsOn(event)) return;
      event.preventDefault();
      this.submit();
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    // What was chosen beforehand is the chat's own: whoever leaves it names no pool.
    this.#pool?.addEventListener("change", () => (this.#poolChosen = true));
    this.#stop.addEventListener("click", onStop);
    this.#typed();
  }

  /** idle, sending, answering or stopping. */
  setActivity(activity) {
    const hadFocus = document.activeElement === this.#stop || document.activeElement === this.#send;
    this.#activity = activity;
    const answering = activity === "answering" || activity === "stopping";
    this.#form.dataset.activity = activity;
    this.#stop.hidden = !answering;
    this.#stop.disabled = activity === "stopping";
    this.#send.hidden = answering;
    this.#typed();
    if (hadFocus) this.focus();
  }

  /** Put `content` back, unless the user has begun something new; returns whether it was put back. */
  restore(content) {
    if (this.#input.value.trim() && this.#input.value !== content) return false;
    this.#input.value = content;
    this.#typed();
    return true;
  }

  focus() {
    if (this.#takesFocus) this.#input.focus({ preventScroll: true });
  }

  /** Send what is there, if anything is and nothing is under way. */
  submit() {
    const content = this.#input.value;
    if (this.#activity !== "idle" || !content.trim()) return;
    this.#input.value = "";
    this.#typed();
    this.#onSubmit({ content, pool: this.#poolChosen ? this.#pool.value : null });
  }

  #typed() {
    // The mirror is laid out behind the text and gives the box its height, without a style attribute.
    this.#mirror.textContent = `${this.#input.value.slice(0, MIRRORED)}\n`;
    this.#send.disabled = this.#activity !== "idle" || !this.#input.value.trim();
  }
}
