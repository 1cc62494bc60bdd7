/**
 * Owns the words in which the page speaks of an answer's state, a wait or a refusal. No DOM.
 */

import { queueText, waitText } from "./queueing.mjs";

const STATE_LABELS = {
  complete: "Finished",
  stopped: "Stopped",
  interrupted: "Interrupted",
  failed: "Failed",
};

// By code, where that says more than the state.
const REASONS = {
  unwatched: "nobody was following it",
};

const ENDING_DETAILS = {
  interrupted: "the answer broke off",
  failed: "no answer could be given",
};

/** Short label of a stored message's state, with its reason where a reader may wonder; empty for a user's message. */
export function stateLabel(state, code = "") {
  const label = STATE_LABELS[state] ?? "";
  return label && REASONS[code] ? `${label}: ${REASONS[code]}` : label;
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
  if (REASONS[ending?.code]) return stateLabel(outcome, ending.code);
  // Who stopped an answer knows why.
  const detail = outcome === "stopped" ? "" : ending?.text || ENDING_DETAILS[outcome];
  return detail ? `${stateLabel(outcome)}: ${detail}` : stateLabel(outcome);
}

/** What a reader should know about this answer besides its text: [{code, text}]. */
export function remarks(answer) {
  const found = [];
  if (answer.moved?.reason === "retry") return answer.notices;
  if (answer.moved?.continues === true) {
    found.push({ code: "moved", text: "The answer moved to another worker and went on from there" });
  } else if (answer.moved?.continues === false) {
    found.push({ code: "moved", text: "The answer could not be continued and was started again" });
  }
  return [...found, ...answer.notices];
}

/** A refusal as {title, detail}: the server's own words, how long a wait it spares, and when to try again. */
export function refusalText({ title, detail, retryAfter, problem }) {
  const wait = waitText(problem?.wait_seconds);
  const spared = wait ? `The wait would have been ${wait}.` : "";
  const again = retryAfter === null || retryAfter === undefined ? "" : `Try again in ${exactWait(retryAfter)}.`;
  return { title, detail: [detail, spared, again].filter(Boolean).join(" ") };
}

function exactWait(seconds) {
  if (seconds < 90) return `${Math.max(1, seconds)} s`;
  if (seconds < 5400) return `${Math.ceil(seconds / 60)} min`;
  return `${Math.ceil(seconds / 3600)} h`;
}

/** When a maintenance should be over, from an ISO time; empty without one. Worded as the server does. */
export function untilText(iso) {
  const at = iso ? new Date(iso) : null;
  if (!at || Number.isNaN(at.getTime())) return "";
  return `Expected to be over at ${at.toISOString().slice(0, 16).replace("T", " ")} UTC`;
}
