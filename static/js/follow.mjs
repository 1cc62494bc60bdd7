/**
 * Owns keeping one run's event stream open until the run has ended. No DOM: the browser's parts are handed in.
 *
 * A lost connection is the browser's to restore (EventSource does it, with Last-Event-ID). What it gives up on
 * (204, 503, a login that ran out) comes here: ask for the run, then end, or open again from the cursor.
 */

import { isSuperseded, newAnswer, reduce } from "./answer.mjs";

const TERMINAL = new Set(["done", "cancelled", "interrupted", "failed"]);
const FIRST_DELAY_MS = 500;
const LONGEST_DELAY_MS = 15_000;

/** The delay before try number `tries` (from 0), ms: doubling, capped, with up to half of it taken off at random. */
export function backoff(tries, random = Math.random) {
  const full = Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** Math.min(tries, 10));
  return full * (1 - random() / 2);
}

/** `eventsUrl` asking for what comes after `cursor`; all of it when there is none. */
export function urlFrom(eventsUrl, cursor) {
  if (!cursor) return eventsUrl;
  return `${eventsUrl}${eventsUrl.includes("?") ? "&" : "?"}after=${encodeURIComponent(cursor)}`;
}

export class RunFollower {
  #parts;
  #answer;
  #eventsUrl;
  #since;
  #stream = null;
  #timer = null;
  #asking = 0;
  #tries = 0;
  #over = false;

  /**
   * since: the epoch from which on the run is followed; what earlier ones gave is passed over.
   * parts: openStream(url, {onEvent, onOpen, onInterrupted, onClosed}) → {close()}; loadRun(runId) → promise of the
   * run; onAnswer(answer) after each change; onLink("live" | "broken"); onEnded(answer) on a terminal event;
   * onSettled(run) when the run ended but its events cannot be had any more; onLost(error) when it cannot be
   * followed at all; isFinal(error) says whether asking again is pointless; setTimer, clearTimer; random.
   */
  constructor({ runId, eventsUrl, since = 0, parts }) {
    this.#answer = newAnswer(runId);
    this.#eventsUrl = eventsUrl;
    this.#since = since;
    this.#parts = parts;
  }

  get answer() {
    return this.#answer;
  }

  get over() {
    return this.#over;
  }

  /** Open, or open anew from the cursor: after the page was hidden, or the network came back. */
  open() {
    this.#drop();
    this.#over = false;
    this.#stream = this.#parts.openStream(urlFrom(this.#eventsUrl, this.#answer.cursor), {
      onEvent: (event) => this.#take(event),
      onOpen: () => this.#parts.onLink("live"),
      onInterrupted: () => this.#parts.onLink("broken"),
      onClosed: () => this.#ask(),
    });
  }

  /** Follow no longer. The run goes on: leaving is not a cancel. */
  close() {
    this.#over = true;
    this.#drop();
  }

  #drop() {
    this.#asking += 1; // An answer to an earlier question is not wanted any more.
    this.#parts.clearTimer(this.#timer);
    this.#timer = null;
    this.#stream?.close();
    this.#stream = null;
  }

  #take(event) {
    if (isSuperseded(event, this.#since)) return;
    const before = this.#answer;
    this.#answer = reduce(before, event);
    if (this.#answer.resetRequired) {
      this.#answer = newAnswer(before.runId);
      this.#ask();
      return;
    }
    if (this.#answer === before) return;
    this.#tries = 0;
    this.#parts.onAnswer(this.#answer);
    if (this.#answer.phase === "ended") {
      this.close();
      this.#parts.onEnded(this.#answer);
    }
  }

  async #ask() {
    this.#drop();
    const question = this.#asking;
    this.#parts.onLink("broken");
    let run;
    try {
      run = await this.#parts.loadRun(this.#answer.runId);
    } catch (error) {
      if (question !== this.#asking) return;
      if (this.#parts.isFinal(error)) {
        this.close();
        this.#parts.onLost(error);
      } else {
        this.#later(() => this.#ask());
      }
      return;
    }
    if (question !== this.#asking) return;
    if (TERMINAL.has(run.status)) {
      this.close();
      this.#parts.onSettled(run);
    } else {
      this.#later(() => this.open());
    }
  }

  #later(action) {
    this.#timer = this.#parts.setTimer(action, backoff(this.#tries, this.#parts.random));
    this.#tries += 1;
  }
}
