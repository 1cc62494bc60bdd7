/**
 * Owns the details below an answer: its button opens and closes them, and every opening fetches them anew.
 */

/** Let every answer in `list` show its details; load(runId) gives their rows, [{term, value}]. */
export function wireDetails({ list, load }) {
  list.addEventListener("click", (event) => {
    const button = event.target.closest("[data-details]");
    if (!button) return;
    const message = button.closest("[data-message]");
    if (button.getAttribute("aria-expanded") === "true") closeDetails(message);
    else open(message, load);
  });
}

/** An answer that is given anew has no details yet. */
export function closeDetails(message) {
  message.querySelector("[data-details]").setAttribute("aria-expanded", "false");
  const panel = message.querySelector("[data-details-panel]");
  panel.hidden = true;
  panel.replaceChildren();
}

async function open(message, load) {
  message.querySelector("[data-details]").setAttribute("aria-expanded", "true");
  const panel = message.querySelector("[data-details-panel]");
  const waiting = said("Loading…");
  panel.replaceChildren(waiting);
  panel.hidden = false;
  let found;
  try {
    found = drawn(await load(message.dataset.runId));
  } catch {
    found = said("The details could not be loaded. Close and open them to try again.");
  }
  // Closed meanwhile, and perhaps opened again.
  if (waiting.isConnected) panel.replaceChildren(found);
}

function said(text) {
  const line = document.createElement("p");
  line.textContent = text;
  return line;
}

function drawn(rows) {
  const list = document.createElement("dl");
  for (const { term, value } of rows) {
    const row = document.createElement("div");
    row.append(document.createElement("dt"), document.createElement("dd"));
    row.children[0].textContent = term;
    row.children[1].textContent = value;
    list.append(row);
  }
  return list;
}
