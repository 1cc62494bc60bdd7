/**
 * Owns the browser's EventSource behind the four calls that a follower needs.
 */

import { EVENT_TYPES } from "./answer.mjs";

/** Follow `url`; callbacks come asynchronously, none after close(). */
export function openEventStream(url, { onEvent, onOpen, onInterrupted, onClosed }) {
  const source = new EventSource(url);
  source.addEventListener("open", () => onOpen());
  source.addEventListener("error", () => {
    // CONNECTING: the browser reconnects by itself. CLOSED: it got an answer that is no stream.
    if (source.readyState === EventSource.CLOSED) onClosed();
    else onInterrupted();
  });
  for (const type of EVENT_TYPES) {
    source.addEventListener(type, (frame) => {
      onEvent({ type, id: frame.lastEventId, data: JSON.parse(frame.data) });
    });
  }
  return { close: () => source.close() };
}
