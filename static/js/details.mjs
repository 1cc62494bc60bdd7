/**
 * Owns what a reader is told of how an answer came to be: why it waited, and what it cost. No DOM.
 */

const whole = new Intl.NumberFormat("en");
const tenths = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

/** "1,234 tokens". */
function tokens(count) {
  return `${whole.format(count)} ${count === 1 ? "token" : "tokens"}`;
}

/** "40 ms", "2.3 s", "3 min 5 s"; a dash for what was never reached. */
export function durationText(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 59_950) return `${tenths.format(ms / 1000)} s`;
  const seconds = Math.round(ms / 1000);
  return `${whole.format(Math.floor(seconds / 60))} min ${seconds % 60} s`;
}

function charged(run) {
  if (run.charged === null) return "Not yet known";
  return run.waste ? `${tokens(run.charged)}, and ${whole.format(run.waste)} computed in vain that nobody pays` : tokens(run.charged);
}

function model({ model: name, pool, degraded }) {
  return degraded ? `${name} (${pool}): answered by a smaller model than you asked for` : `${name} (${pool})`;
}

/** The rows of an answer's details, from its run as the API gives it: [{term, value}]. */
export function detailsOf(run) {
  const { usage, timings } = run;
  return [
    { term: "Waited for a worker", value: durationText(timings.queue_ms) },
    { term: "First words after", value: durationText(timings.ttft_ms) },
    { term: "Ended after", value: durationText(timings.total_ms) },
    { term: "Prompt", value: `${tokens(usage.prompt)}, ${whole.format(usage.cached)} of them cached` },
    { term: "Answer", value: tokens(usage.output) },
    { term: "Charged", value: charged(run) },
    { term: "Model", value: model(run) },
    { term: "Attempts", value: whole.format(run.epoch) },
  ];
}
