/**
 * Owns when a page that watches something fetches itself anew. No DOM: the parts are handed in.
 */

export class Refresher {
  #parts;
  #everyMs;
  #timer = null;
  #on = false;

  /**
   * load() → promise of what is to be shown; show(it); mayShow(): false while the reader is in the middle of something;
   * trouble(isThere): whether the last load failed; setTimer, clearTimer.
   */
  constructor({ everyMs, parts }) {
    this.#everyMs = everyMs;
    this.#parts = parts;
  }

  start() {
    if (this.#on) return;
    this.#on = true;
    this.#later();
  }

  stop() {
    this.#on = false;
    this.#parts.clearTimer(this.#timer);
  }

  #later() {
    this.#timer = this.#parts.setTimer(() => this.#refresh(), this.#everyMs);
  }

  async #refresh() {
    if (this.#parts.mayShow()) await this.#once();
    if (this.#on) this.#later();
  }

  async #once() {
    let found;
    try {
      found = await this.#parts.load();
    } catch {
      this.#parts.trouble(true);
      return;
    }
    // The reader may have stopped it, or begun something, while it was on its way.
    if (!this.#on || !this.#parts.mayShow()) return;
    this.#parts.show(found);
    this.#parts.trouble(false);
  }
}
