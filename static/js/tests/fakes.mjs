/**
 * Owns the stand-ins that several tests share: a run's event log behind a server, and timers that fire when told.
 */

import { compareIds } from "../answer.mjs";

const TERMINAL = new Set(["completed", "cancelled", "interrupted", "failed"]);

/** A log of events from short rows [id, type, data]. */
export function log(...rows) {
  return rows.map(([id, type, data]) => ({ id, type, data: data ?? {} }));
}

/** What a server sends to a follower that has seen everything up to `cursor` (null: nothing yet). */
export function after(events, cursor) {
  return cursor ? events.filter((event) => compareIds(event.id, cursor) > 0) : events;
}

/** An answer that waited, began, moved on, began anew, and ended: every way in which a text grows. */
export const EVENTFUL = log(
  ["0-1", "queued", { position: 1, wait_seconds: 4, pool: "default" }],
  ["0-2", "queued", { position: 0, wait_seconds: 2, pool: "default" }],
  ["1-1", "started", { epoch: 1, pool: "default", model: "small", degraded: false }],
  ["1-2", "notice", { code: "context_trimmed", text: "Old messages were left out" }],
  ["1-3", "delta", { text: "Rome is " }],
  ["1-4", "delta", { text: "the capit" }],
  ["2-1", "started", { epoch: 2, reason: "worker_lost", continues: true, model: "small", degraded: false }],
  ["2-2", "delta", { text: "al" }],
  ["3-1", "started", { epoch: 3, reason: "worker_lost", continues: false, model: "small", degraded: true }],
  ["3-2", "delta", { text: "It is Rome" }],
  ["3-3", "delta", { text: ".\r\n🏛" }],
  ["3-18446744073709551615", "completed", { message_id: "m1", finish_reason: "stop" }],
);
export const EVENTFUL_TEXT = "It is Rome.\r\n🏛";

/** Streams of one run: `streams` holds what was opened, newest last; send(event) delivers to it. */
export class FakeStreams {
  streams = [];

  open = (url, handlers) => {
    const stream = { url, handlers, closed: false, close: () => (stream.closed = true) };
    this.streams.push(stream);
    return stream;
  };

  get last() {
    return this.streams.at(-1);
  }

  send(events) {
    for (const event of events) {
      if (this.last.closed) return;
      this.last.handlers.onEvent(event);
      if (TERMINAL.has(event.type)) return;
    }
  }
}

export class FakeTimers {
  pending = [];

  set = (action, ms) => {
    const timer = { action, ms };
    this.pending.push(timer);
    return timer;
  };

  clear = (timer) => {
    this.pending = this.pending.filter((each) => each !== timer);
  };

  fire() {
    const timer = this.pending.shift();
    timer.action();
    return timer.ms;
  }
}

/** Let every promise that can go on do so. */
export function settle() {
  return new Promise((resolve) => setImmediate(resolve));
}
