/**
 * Owns the turn that the user has sent and the server has not yet accepted. No DOM: storage and ids are handed in.
 *
 * A turn keeps its client_turn_id until it is accepted, so that sending it again, after a lost response or a
 * reload, can never make a second one.
 */

import { Unreachable } from "./api.mjs";

const STORAGE_KEY = "chatsite.unsent-turn";

/** Leave nothing for whoever uses this tab next. */
export function forgetUnsent(storage) {
  storage.removeItem(STORAGE_KEY);
}

export class Outbox {
  #storage;
  #newId;
  #owner;
  #turn = null;

  /**
   * storage: getItem, setItem, removeItem (sessionStorage: one per tab); newId() → a fresh unique string;
   * owner: the id of the account, since a tab may be used by another one after it.
   */
  constructor({ storage, newId, owner }) {
    this.#storage = storage;
    this.#newId = newId;
    this.#owner = owner;
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
    this.#write(() => this.#storage.setItem(STORAGE_KEY, JSON.stringify({ owner: this.#owner, chatId, turn, at: now })));
  }

  /** Remember across a reload a turn that cannot be sent for now: it is not on its way, and waits for the user. */
  setAside({ chatId, turn }) {
    this.keep({ chatId, turn, now: null });
  }

  /** The server has it. */
  accepted() {
    this.#turn = null;
    this.forget();
  }

  /** The server said no: nothing to send again by itself, but the same text keeps its id. */
  forget() {
    this.#write(() => forgetUnsent(this.#storage));
  }

  /** What a reload left undecided: {chatId, turn, at (null: set aside)}, or null. Its text keeps its id. */
  left() {
    let left;
    try {
      left = JSON.parse(this.#storage.getItem(STORAGE_KEY));
    } catch {
      return null;
    }
    if (typeof left?.turn?.clientTurnId !== "string" || typeof left.turn.content !== "string") return null;
    const { owner, ...undecided } = left;
    if (owner !== this.#owner) {
      // Another account's, whose login ended without a log-out.
      this.forget();
      return null;
    }
    this.#turn = left.turn;
    return undecided;
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
