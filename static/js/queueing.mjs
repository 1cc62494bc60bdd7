/**
 * Owns what a reader is told of the wait for an answer, and what of it is worth saying aloud. No DOM.
 */

/** "about 12 s", "about 3 min": an estimate, so never more exact than it can be. */
export function waitText(seconds) {
  if (!Number.isFinite(seconds) || seconds < 0) return "";
  if (seconds < 1) return "a moment";
  if (seconds < 60) return `about ${Math.round(seconds)} s`;
  return `about ${Math.round(seconds / 60)} min`;
}

const RULES = new Intl.PluralRules("en", { type: "ordinal" });
const ENDINGS = { one: "st", two: "nd", few: "rd", other: "th" };

function ordinal(number) {
  return `${number}${ENDINGS[RULES.select(number)]}`;
}

const REASONS = {
  overtaken: "others go first, who have had less so far or whose plan weighs more",
  worker_lost: "the worker that had it was lost",
  drained: "the worker that had it is shutting down",
  retry: "it was sent again",
};

/** `position` counts the runs ahead: 0 is next in line. */
export function queueText({ position, wait_seconds: seconds, reason } = {}) {
  const wait = waitText(seconds);
  const place = position === 0 ? "Next in line" : `${ordinal(position + 1)} in line`;
  const parts = [
    Number.isFinite(position) ? place : "Waiting in line",
    ...(wait ? [wait] : []),
    ...(reason ? [REASONS[reason] ?? String(reason).replaceAll("_", " ")] : []),
  ];
  return parts.join(", ");
}

/**
 * Whether a screen reader should hear `now`, the last `said` before it (null: nothing): where the reader was put back,
 * is next, or has come halfway since. A place may change every second.
 */
export function isNews(now, said) {
  if (!said || !Number.isFinite(now?.position)) return false;
  if (now.position > said.position) return Boolean(now.reason);
  return now.position < said.position && (now.position === 0 || now.position <= said.position / 2);
}
