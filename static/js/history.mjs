/**
 * Owns fetching what lies before the list shown, page by page: earlier messages, older chats. No DOM.
 */

export class History {
  #load;
  #take;
  #next = null;

  /**
   * load(next) → promise of {results, next}, `next` null for the first page; take(results) shows them and returns
   * how many were older than everything shown before.
   */
  constructor({ load, take }) {
    this.#load = load;
    this.#take = take;
  }

  /**
   * Show the next older page; resolves to whether there may be more. The first pages can hold only what the server
   * had rendered into the page, which knows no cursor: they are passed over.
   */
  async older() {
    for (;;) {
      const page = await this.#load(this.#next);
      this.#next = page.next;
      const taken = this.#take(page.results);
      if (!page.next) return false;
      if (taken > 0) return true;
    }
  }
}
