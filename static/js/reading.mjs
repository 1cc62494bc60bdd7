/**
 * Owns whether the page follows the end of the conversation or stays where the reader is. No DOM.
 */

const NEAR_END_PX = 32;

export class ReadingPosition {
  #top = 0;
  #following = true;

  get following() {
    return this.#following;
  }

  /** After every scroll, whoever caused it: `top`, `height`, `viewport` in px. Moving up detaches, the end attaches. */
  scrolled({ top, height, viewport }) {
    const movedUp = top < this.#top - 1;
    this.#top = top;
    if (height - viewport - top <= NEAR_END_PX) this.#following = true;
    else if (movedUp) this.#following = false;
  }

  /** The reader asked for the end. */
  attach() {
    this.#following = true;
  }
}
