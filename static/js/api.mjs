/**
 * Owns the calls to the REST API and what can go wrong with one. No DOM: fetch and the CSRF token are handed in.
 */

/** The server understood and said no: an application/problem+json document. */
export class Refused extends Error {
  constructor({ status, problem, retryAfter }) {
    super(problem.title || `HTTP ${status}`);
    this.status = status;
    this.code = problem.code ?? null;
    this.title = problem.title || "The server refused";
    this.detail = typeof problem.detail === "string" ? problem.detail : "";
    this.problem = problem;
    this.retryAfter = retryAfter;
  }
}

/** No usable response: the request may or may not have been carried out. */
export class Unreachable extends Error {}

const PROBLEM = /^application\/(problem\+)?json\b/;

/** Seconds of a Retry-After header, given as seconds or as a date; null without one. */
export function retryAfterSeconds(header, now = Date.now()) {
  if (!header) return null;
  if (/^\d+$/.test(header)) return Number(header);
  const at = Date.parse(header);
  return Number.isNaN(at) ? null : Math.max(0, Math.ceil((at - now) / 1000));
}

/** Path and query of an absolute URL: behind a proxy its scheme or host may not be the browser's own. */
export function localPath(url) {
  const parsed = new URL(url, "http://localhost");
  return parsed.pathname + parsed.search;
}

export class Api {
  #fetch;
  #csrfToken;
  #root;

  constructor({ fetch, csrfToken, root = "/api/v1" }) {
    this.#fetch = fetch;
    this.#csrfToken = csrfToken;
    this.#root = root;
  }

  createChat({ pool }) {
    return this.#call("POST", `${this.#root}/chats`, pool ? { pool } : {});
  }

  getChat(chatId) {
    return this.#call("GET", `${this.#root}/chats/${chatId}`);
  }

  /** A page of chats, last active first; `next` of an earlier page continues it. */
  listChats({ limit, next = null }) {
    return this.#call("GET", next ? localPath(next) : `${this.#root}/chats?limit=${limit}`);
  }

  /** A page of messages, newest first; `next` of an earlier page continues it. */
  listMessages({ chatId, limit, next = null }) {
    return this.#call("GET", next ? localPath(next) : `${this.#root}/chats/${chatId}/messages?limit=${limit}`);
  }

  /** turn = {content, clientTurnId, pool?}. The same turn may be sent again: the server keeps one. */
  sendMessage({ chatId, turn }) {
    const body = { content: turn.content, client_turn_id: turn.clientTurnId };
    if (turn.pool) body.pool = turn.pool;
    return this.#call("POST", `${this.#root}/chats/${chatId}/messages`, body);
  }

  getRun(runId) {
    return this.#call("GET", `${this.#root}/runs/${runId}`);
  }

  cancelRun(runId) {
    return this.#call("POST", `${this.#root}/runs/${runId}/cancel`, {});
  }

  /** What the site says to everybody: {maintenance, banner: {text, severity, until} | null}. */
  getStatus() {
    return this.#call("GET", `${this.#root}/status`);
  }

  /** Have a run that was stopped, broke off or failed answered anew; where it is under way already, it stays as it is. */
  retryRun(runId) {
    return this.#call("POST", `${this.#root}/runs/${runId}/retry`, {});
  }

  async #call(method, path, body) {
    const headers = { Accept: "application/json" };
    const options = { method, headers, credentials: "same-origin", cache: "no-store" };
    if (method !== "GET") {
      headers["Content-Type"] = "application/json";
      headers["X-CSRFToken"] = this.#csrfToken();
      options.body = JSON.stringify(body);
    }
    let response;
    let text;
    try {
      response = await this.#fetch(path, options);
      text = await response.text();
    } catch (error) {
      throw new Unreachable(`${method} ${path}`, { cause: error });
    }
    const json = parse(response.headers.get("Content-Type"), text);
    if (response.ok && json !== null) return json;
    // A proxy's own error page says nothing about what the application behind it did.
    if (response.ok || (json === null && response.status >= 500)) {
      throw new Unreachable(`${method} ${path}: HTTP ${response.status}`);
    }
    throw new Refused({
      status: response.status,
      problem: json ?? {},
      retryAfter: retryAfterSeconds(response.headers.get("Retry-After")),
    });
  }
}

function parse(contentType, text) {
  if (!PROBLEM.test(contentType ?? "")) return null;
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
