/**
 * Owns the words in which the page speaks of an answer's state, a wait or a refusal. No DOM.
 */

/** "about 12 s", "about 3 min": an estimate, so never more exact than it can be. */
export function waitText(seconds) {
  if (!Number.isFinite(seconds) || seconds < 0) return "";
  if (seconds < 1) return "a moment";
  if (seconds < 60) return `about ${Math.round(seconds)} s`;
  return `about ${Math.round(seconds / 60)} min`;
}

const QUEUE_REASONS = {
  worker_lost: "the worker that had it was lost",
  drained: "the worker that had it is shutting down",
  retry: "it was sent again",
};

/** `position` counts the runs ahead; a reader counts from one. */
export function queueText({ position, wait_seconds: seconds, reason } = {}) {
  const wait = waitText(seconds);
  const parts = [
    Number.isFinite(position) ? `Waiting in the queue, position ${position + 1}` : "Waiting in the queue",
    ...(wait ? [wait] : []),
    ...(reason ? [QUEUE_REASONS[reason] ?? String(reason).replaceAll("_", " ")] : []),
  ];
  return parts.join(", ");
}

const STATE_LABELS = {
  complete: "Finished",
  stopped: "Stopped",
  interrupted: "Interrupted",
  failed: "Failed",
};

const ENDING_DETAILS = {
  interrupted: "the answer broke off",
  failed: "no answer could be given",
};

/** Short label of a stored message's state; empty for a user's message. */
export function stateLabel(state) {
  return STATE_LABELS[state] ?? "";
}

/** One line about where the answer stands now. */
export function statusText(answer, { stopping = false } = {}) {
  if (answer.phase === "ended") return endingText(answer);
  if (stopping) return "Stopping…";
  switch (answer.phase) {
    case "queued":
      return queueText(answer.queue);
    case "started":
      return "Reading the conversation…";
    case "writing":
      return "Answering…";
    default:
      return "Waiting for the server…";
  }
}

function endingText({ outcome, ending }) {
  if (outcome === "complete") {
    return ending?.finish_reason === "length" ? "Finished: the length limit was reached" : stateLabel(outcome);
  }
  // Who stopped an answer knows why.
  const detail = outcome === "stopped" ? "" : ending?.text || ENDING_DETAILS[outcome];
  return detail ? `${stateLabel(outcome)}: ${detail}` : stateLabel(outcome);
}

/** What a reader should know about this answer besides its text: [{code, text}]. */
export function remarks(answer) {
  const found = [];
  if (answer.degraded) {
    const by = answer.model ? ` by ${answer.model}` : "";
    found.push({ code: "degraded", text: `Reduced service: answered${by}, not by the model you chose` });
  }
  if (answer.moved?.continues === true) {
    found.push({ code: "moved", text: "The answer moved to another worker and went on from there" });
  } else if (answer.moved?.continues === false) {
    found.push({ code: "moved", text: "The answer could not be continued and was started again" });
  }
  return [...found, ...answer.notices];
}

/** A refusal as {title, detail}: the server's own words, and when to try again if it said so. */
export function refusalText({ title, detail, retryAfter }) {
  const again = retryAfter === null || retryAfter === undefined ? "" : `Try again in ${exactWait(retryAfter)}.`;
  return { title, detail: [detail, again].filter(Boolean).join(" ") };
}

function exactWait(seconds) {
  if (seconds < 90) return `${Math.max(1, seconds)} s`;
  if (seconds < 5400) return `${Math.ceil(seconds / 60)} min`;
  return `${Math.ceil(seconds / 3600)} h`;
}
