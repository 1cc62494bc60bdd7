/**
 * Owns what one run's answer looks like after any prefix of its event stream. No DOM.
 *
 * The text equals the concatenated deltas, restarted by a `started` with `continues: false`. Events arrive at
 * least once (a reconnect replays some), so whatever is not newer than the cursor changes nothing.
 */

const OUTCOMES = { completed: "complete", cancelled: "stopped", interrupted: "interrupted", failed: "failed" };

/** Every named event of the stream; an EventSource needs a listener for each. */
export const EVENT_TYPES = [
  "queued", "started", "delta", "notice", "tool_requested", "tool_result",
  "completed", "cancelled", "interrupted", "failed", "reset_required",
];

/**
 * Order two entry ids "<epoch>-<seq>": negative, zero or positive. BigInt, since a terminal may carry the
 * largest sequence number of its epoch (2^64 - 1), beyond what a Number can hold.
 */
export function compareIds(left, right) {
  const [leftEpoch, leftSeq] = left.split("-").map(BigInt);
  const [rightEpoch, rightSeq] = right.split("-").map(BigInt);
  if (leftEpoch !== rightEpoch) return leftEpoch < rightEpoch ? -1 : 1;
  if (leftSeq !== rightSeq) return leftSeq < rightSeq ? -1 : 1;
  return 0;
}

/** Whether `event` belongs to an attempt before `epoch`, which a retry has replaced. `queued` belongs to none. */
export function isSuperseded(event, epoch) {
  const of = event.id ? BigInt(event.id.split("-")[0]) : 0n;
  return event.type !== "reset_required" && of > 0n && of < BigInt(epoch);
}

/**
 * An answer of which nothing has been heard yet.
 *
 * phase: waiting → queued → started → writing → ended. `take` counts restarts of the text, so that a view knows
 * when to replace instead of append. `outcome` is a message state, set while the phase is `ended`.
 */
export function newAnswer(runId) {
  return {
    runId,
    cursor: null,
    phase: "waiting",
    outcome: null,
    text: "",
    take: 0,
    epoch: 0,
    queue: null,
    model: null,
    degraded: false,
    moved: null,
    notices: [],
    ending: null,
    resetRequired: false,
  };
}

/** The message state to show: streaming, or the one in which the answer ended. */
export function stateOf(answer) {
  return answer.phase === "ended" ? answer.outcome : "streaming";
}

/** The answer after `event` = {type, id, data}; the same object when the event was seen before. */
export function reduce(answer, event) {
  // Sent about the stream, not in it: a browser reports it under the id of the frame before.
  if (event.type === "reset_required") return { ...answer, resetRequired: true };
  if (answer.cursor && event.id && compareIds(event.id, answer.cursor) <= 0) return answer;
  const next = { ...answer, cursor: event.id || answer.cursor };
  const data = event.data;
  switch (event.type) {
    case "queued":
      return { ...next, phase: "queued", outcome: null, ending: null, queue: data };
    case "started":
      return start(next, data);
    case "delta":
      return { ...next, phase: "writing", text: answer.text + data.text };
    case "notice":
      return withNotice(next, { code: data.code, text: data.text });
    default:
      if (event.type in OUTCOMES) return { ...next, phase: "ended", outcome: OUTCOMES[event.type], ending: data };
      return next; // A type of a later version: the cursor still moves past it.
  }
}

/**
 * Only `continues: true` goes on from the text shown. A `started` without it has nothing before it, or repeats the
 * whole text after a lost stream: both begin anew.
 */
function start(answer, data) {
  const continues = data.continues === true;
  const again = answer.epoch > 0 || data.epoch > 1;
  return {
    ...answer,
    phase: continues && answer.text !== "" ? "writing" : "started",
    outcome: null,
    ending: null,
    queue: null,
    text: continues ? answer.text : "",
    take: continues || answer.text === "" ? answer.take : answer.take + 1,
    epoch: data.epoch,
    model: data.model ?? null,
    degraded: Boolean(data.degraded),
    moved: again ? { reason: data.reason ?? null, continues } : null,
  };
}

function withNotice(answer, notice) {
  const known = answer.notices.some((each) => each.code === notice.code && each.text === notice.text);
  return known ? answer : { ...answer, notices: [...answer.notices, notice] };
}
