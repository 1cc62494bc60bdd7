/**
 * Owns the message elements: drawing, ordering and updating them. Text is only ever text, never markup.
 */

import { stateOf } from "./answer.mjs";
import { closeDetails } from "./details_view.mjs";
import { remarks, stateLabel, statusText } from "./labels.mjs";

export class MessageList {
  #list;
  #template;
  #empty;

  /**
   * list: [data-messages]; template: a <template> holding one [data-message]; empty: what an empty chat shows;
   * onRetry(runId): the reader wants that answer anew.
   */
  constructor({ list, template, empty, onRetry }) {
    this.#list = list;
    this.#template = template;
    this.#empty = empty;
    list.addEventListener("click", (event) => {
      const button = event.target.closest("[data-retry]");
      if (button) onRetry(button.closest("[data-message]").dataset.runId);
    });
  }

  /** The smallest sequence number shown, or null. */
  get oldestSeq() {
    const seqs = [...this.#list.querySelectorAll("[data-seq]")].map((element) => Number(element.dataset.seq));
    return seqs.length ? Math.min(...seqs) : null;
  }

  /** How many complete answers are shown. */
  get completeCount() {
    return this.#list.querySelectorAll('[data-role="assistant"][data-state="complete"]').length;
  }

  /** The first element, or null. */
  get first() {
    return this.#list.firstElementChild;
  }

  has(messageId) {
    return this.#byId(messageId) !== null;
  }

  /** Show a stored message where its sequence number puts it; returns true when it was not shown before. */
  put(message) {
    const known = this.#byId(message.id) ?? this.#ofRun(message.run_id, message.role);
    const element = known ?? this.#create(message.role);
    element.dataset.messageId = message.id;
    element.dataset.seq = message.seq;
    element.dataset.runId = message.run_id ?? "";
    this.#settle(element, message);
    if (!known) this.#insert(element, message.seq);
    return !known;
  }

  /** Show what the user is sending before the server has it. */
  addSending(content) {
    const element = this.#create("user");
    element.dataset.state = "sending";
    replaceText(element, content);
    setStatus(element, "Sending…");
    this.#append(element);
    return {
      waiting: () => setStatus(element, "The server cannot be reached. Trying again…"),
      accepted: (message) => {
        // A repeat of a turn that is on the page already.
        if (this.has(message.id)) element.remove();
        else this.#accept(element, message, content);
      },
      unsent: () => {
        element.dataset.state = "failed";
        setStatus(element, "Not sent");
      },
      retrying: () => {
        element.dataset.state = "sending";
        setStatus(element, "Sending…");
      },
      remove: () => {
        element.remove();
        this.#empty.hidden = this.#list.childElementCount > 0;
      },
    };
  }

  #accept(element, message, sent) {
    element.dataset.messageId = message.id;
    if (message.seq) element.dataset.seq = message.seq;
    element.dataset.runId = message.run_id ?? "";
    element.dataset.state = "complete";
    // What is stored is what is shown, should the server have changed it.
    if (typeof message.content === "string" && message.content !== sent) replaceText(element, message.content);
    setStatus(element, "");
  }

  /** The live view of a run's answer: update(answer, {stopping}) draws what changed. */
  answerOf(runId) {
    let element = this.#ofRun(runId, "assistant");
    if (element) {
      closeDetails(element);
    } else {
      element = this.#create("assistant");
      element.dataset.runId = runId;
      this.#append(element);
    }
    const drawn = { take: -1, length: 0 };
    let shown = null;
    let broken = false;
    const draw = () => {
      const { answer, stopping } = shown;
      const ended = answer.phase === "ended";
      drawText(element, answer, drawn);
      element.dataset.state = stateOf(answer);
      element.dataset.phase = answer.phase;
      if (answer.ending?.message_id) element.dataset.messageId = answer.ending.message_id;
      setStatus(element, broken && !ended ? "Connection lost. Reconnecting…" : statusText(answer, { stopping }));
      setDegraded(element, answer.degraded);
      setRemarks(element, remarks(answer));
    };
    return {
      update: (answer, { stopping = false } = {}) => {
        shown = { answer, stopping };
        draw();
      },
      link: (link) => {
        broken = link === "broken";
        draw();
      },
      lost: (text) => setStatus(element, text),
    };
  }

  /** Show that a run's answer is being asked for anew; over() when that is decided. */
  retrying(runId) {
    const element = this.#ofRun(runId, "assistant");
    const button = element.querySelector("[data-retry]");
    const before = element.querySelector("[data-status]").textContent;
    button.disabled = true;
    setStatus(element, "Asking again…");
    return {
      over: () => {
        button.disabled = false;
        setStatus(element, before);
      },
    };
  }

  #settle(element, { state, code, content: text, degraded }) {
    element.dataset.state = state;
    setDegraded(element, degraded);
    delete element.dataset.phase;
    if (element.querySelector("[data-text]").textContent !== text) replaceText(element, text);
    if (element.dataset.role === "assistant") setStatus(element, stateLabel(state, code));
  }

  #byId(messageId) {
    return this.#list.querySelector(`[data-message-id="${CSS.escape(messageId)}"]`);
  }

  #ofRun(runId, role) {
    if (!runId) return null;
    return this.#list.querySelector(`[data-run-id="${CSS.escape(runId)}"][data-role="${CSS.escape(role)}"]`);
  }

  #create(role) {
    const element = this.#template.content.firstElementChild.cloneNode(true);
    element.dataset.role = role;
    element.querySelector("[data-author]").textContent = role === "user" ? "You" : "Assistant";
    return element;
  }

  #append(element) {
    this.#list.append(element);
    this.#empty.hidden = true;
  }

  #insert(element, seq) {
    // Without a number: being sent or still streaming, so newer than anything stored.
    const newer = [...this.#list.children].find((other) => !other.dataset.seq || Number(other.dataset.seq) > seq);
    this.#list.insertBefore(element, newer ?? null);
    this.#empty.hidden = true;
  }
}

/** Append what is new, so that a selection in what is already there survives; replace only when the text began anew. */
function drawText(element, answer, drawn) {
  const target = element.querySelector("[data-text]");
  if (drawn.take !== answer.take || !(target.firstChild instanceof Text)) {
    replaceText(element, answer.text);
  } else if (answer.text.length > drawn.length) {
    target.firstChild.appendData(answer.text.slice(drawn.length));
  }
  drawn.take = answer.take;
  drawn.length = answer.text.length;
}

function replaceText(element, text) {
  element.querySelector("[data-text]").replaceChildren(document.createTextNode(text));
}

function setStatus(element, text) {
  const status = element.querySelector("[data-status]");
  if (status.textContent !== text) status.textContent = text;
}

function setDegraded(element, degraded) {
  element.querySelector("[data-degraded]").hidden = !degraded;
}

function setRemarks(element, found) {
  const list = element.querySelector("[data-remarks]");
  if (list.childElementCount === found.length && found.every(({ text }, at) => list.children[at].textContent === text)) {
    return;
  }
  list.replaceChildren(
    ...found.map(({ code, text }) => {
      const item = document.createElement("li");
      item.dataset.remark = code;
      item.textContent = text;
      return item;
    }),
  );
}
