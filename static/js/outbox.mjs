/**
 * Owns the turn that the user has sent and the server has not yet accepted. No DOM: storage and ids are handed in.
 *
 * A turn keeps its client_turn_id until it is accepted, so that sending it again, after a lost response or a
 * reload, can never make a second one.
 */

import { Unreachable } from "./api.mjs";

const STORAGE_KEY = "chatsite.unsent-turn";

export class Outbox {
  #storage;
  #newId;
  #turn = null;

  /** storage: getItem, setItem, removeItem (sessionStorage: one per tab); newId() → a fresh unique string. */
  constructor({ storage, newId }) {
    this.#storage = storage;
    this.#newId = newId;
  }

  /** The turn for this text: the one still waiting if it says the same, else a new one. */
  turn({ content, pool }) {
    const waiting = this.#turn;
    if (!waiting || waiting.content !== content || waiting.pool !== pool) {
      this.#turn = { content, pool, clientTurnId: this.#newId() };
    }
    return this.#turn;
  }

  /**
   * Remember across a reload that `turn` is on its way to `chatId` (null: its chat does not exist yet) since `now`,
   * in ms.
   */
  keep({ chatId, turn, now }) {
    this.#turn = turn;
    this.#write(() => this.#storage.setItem(STORAGE_KEY, JSON.stringify({ chatId, turn, at: now })));
  }

  /** The server has it. */
  accepted() {
    this.#turn = null;
    this.forget();
  }

  /** The server said no: nothing to send again by itself, but the same text keeps its id. */
  forget() {
    this.#write(() => this.#storage.removeItem(STORAGE_KEY));
  }

  /** What a reload left undecided: {chatId, turn, at}, or null. Its text keeps its id. */
  left() {
    let left;
    try {
      left = JSON.parse(this.#storage.getItem(STORAGE_KEY));
    } catch {
      return null;
    }
    if (typeof left?.turn?.clientTurnId !== "string" || typeof left.turn.content !== "string") return null;
    this.#turn = left.turn;
    return left;
  }

  #write(action) {
    try {
      action();
    } catch {
      // Storage may be full or forbidden; a reload then forgets the turn, sending is not affected.
    }
  }
}

/**
 * The result of `action()`, tried again after each delay (ms) while the server cannot be reached.
 * Anything else that it throws, and the last Unreachable, is thrown on.
 */
export async function patiently(action, { delays, wait, onWaiting = () => {} }) {
  for (const delay of delays) {
    try {
      return await action();
    } catch (error) {
      if (!(error instanceof Unreachable)) throw error;
      onWaiting();
      await wait(delay);
    }
  }
  return action();
}
