/**
 * Owns scrolling the page: along with the answer while the reader is at its end, and not otherwise.
 */

import { ReadingPosition } from "./reading.mjs";

export class Scroller {
  #position = new ReadingPosition();
  #button;
  #asked = false;

  /** button: brings the reader back to the end; shown only while the page does not follow it. */
  constructor({ button }) {
    this.#button = button;
    button.addEventListener("click", () => this.toEnd());
    addEventListener("scroll", () => this.#look(), { passive: true });
    addEventListener("resize", () => this.grew(), { passive: true });
  }

  /** Content was added at the end. Layout is read once a frame, however many pieces came. */
  grew() {
    if (this.#asked) return;
    this.#asked = true;
    requestAnimationFrame(() => {
      this.#asked = false;
      if (this.#position.following) this.#jump();
      this.#show();
    });
  }

  /** Go to the end and stay there. */
  toEnd() {
    this.#position.attach();
    this.grew();
  }

  /** Run `change`, which adds content above, without moving what the reader sees. */
  keepingPlace(anchor, change) {
    const before = anchor?.getBoundingClientRect().top ?? 0;
    change();
    if (anchor) scrollBy({ top: anchor.getBoundingClientRect().top - before, behavior: "instant" });
  }

  #jump() {
    scrollTo({ top: document.documentElement.scrollHeight, behavior: "instant" });
  }

  #look() {
    const page = document.documentElement;
    this.#position.scrolled({ top: scrollY, height: page.scrollHeight, viewport: page.clientHeight });
    this.#show();
  }

  #show() {
    this.#button.hidden = this.#position.following;
  }
}
