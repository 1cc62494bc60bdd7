/**
 * Owns looking for the title that a model makes of a chat's first answer: a few times, then no more. No DOM.
 */

// Before each look. A title takes seconds; one that takes longer than all of these is there on the next visit.
const DELAYS_MS = [2000, 4000, 8000, 16_000];

export class TitleWatch {
  #parts;
  #title = null;
  #timer = null;
  #round = 0;

  /**
   * load() → promise of the chat; show(chat) when it has another title; isFinal(error) says whether asking again is
   * pointless; setTimer, clearTimer.
   */
  constructor(parts) {
    this.#parts = parts;
  }

  /** Look until the chat has another title than this one. */
  begin(title) {
    this.stop();
    this.#title = title;
    this.#later(0);
  }

  /** What somebody else has read meanwhile: another title, a model's or the owner's, is the end of it. */
  seen(title) {
    if (title !== this.#title) this.stop();
  }

  stop() {
    this.#round += 1; // A chat that is on its way is not wanted any more.
    this.#parts.clearTimer(this.#timer);
    this.#timer = null;
  }

  #later(tries) {
    if (tries < DELAYS_MS.length) this.#timer = this.#parts.setTimer(() => this.#look(tries), DELAYS_MS[tries]);
  }

  async #look(tries) {
    const round = this.#round;
    let chat = null;
    try {
      chat = await this.#parts.load();
    } catch (error) {
      if (this.#parts.isFinal(error)) return;
    }
    if (round !== this.#round) return;
    if (chat !== null && chat.title !== this.#title) this.#parts.show(chat);
    else this.#later(tries + 1);
  }
}
