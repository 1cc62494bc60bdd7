/**
 * Owns the wiring of the chat page: finds its elements by their data-* hooks and joins views and models.
 */

import { Api, Refused } from "./api.mjs";
import { Banner } from "./banner.mjs";
import { Composer } from "./composer.mjs";
import { Conversation } from "./conversation.mjs";
import { csrfToken } from "./csrf.mjs";
import { detailsOf } from "./details.mjs";
import { wireDetails } from "./details_view.mjs";
import { openEventStream } from "./event_stream.mjs";
import { History } from "./history.mjs";
import { MessageList } from "./message_view.mjs";
import { Outbox } from "./outbox.mjs";
import { Scroller } from "./scroller.mjs";
import { ChatLinks, wireDrawer } from "./sidebar.mjs";

const PAGE_SIZE = 50;
const NIL_ID = "00000000-0000-0000-0000-000000000000";
const HIDDEN_LONG_MS = 5000; // A tab hidden for less keeps its stream in every browser.

const hook = (name) => document.querySelector(`[data-${name}]`);
const page = hook("chat-page");
const urlOf = (chatId) => page.dataset.chatUrl.replace(NIL_ID, chatId);

function storage() {
  try {
    return sessionStorage;
  } catch {
    return { getItem: () => null, setItem: () => {}, removeItem: () => {} };
  }
}

/** crypto.randomUUID exists only on https and localhost; a self-hosted page may be neither. */
function newId() {
  if (crypto.randomUUID) return crypto.randomUUID();
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Resolves after `ms`, or sooner when the network comes back. */
function wait(ms) {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      removeEventListener("online", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    addEventListener("online", done);
  });
}

function alertView() {
  const box = hook("alert");
  const [title, detail, action, login] = ["alert-title", "alert-detail", "alert-action", "alert-login"].map(hook);
  let run = null;
  let timer = null;
  const clear = () => {
    clearTimeout(timer);
    box.hidden = true;
  };
  action.addEventListener("click", () => {
    clear();
    run?.();
  });
  hook("alert-close").addEventListener("click", clear);
  return {
    clear,
    show: (what) => {
      clear();
      title.textContent = what.title;
      detail.textContent = what.detail ?? "";
      run = what.action?.run ?? null;
      action.hidden = !run;
      action.textContent = what.action?.label ?? "";
      action.disabled = Boolean(what.action?.afterS);
      if (action.disabled) timer = setTimeout(() => (action.disabled = false), 1000 * what.action.afterS);
      login.hidden = !what.login;
      login.href = `${page.dataset.loginUrl}?next=${encodeURIComponent(location.pathname)}`;
      box.hidden = false;
    },
  };
}

const api = new Api({ fetch: (...args) => fetch(...args), csrfToken: () => csrfToken() });
const scroller = new Scroller({ button: hook("to-end") });
const messages = new MessageList({
  list: hook("messages"),
  template: hook("message-template"),
  empty: hook("empty"),
  onRetry: (runId) => {
    // The button goes away under the reader's finger or focus.
    composer.focus();
    conversation.retry(runId);
  },
});
const alert = alertView();
const banner = new Banner({ element: hook("banner") });
const links = new ChatLinks({
  list: hook("chats"),
  template: hook("chat-template"),
  empty: hook("no-chats"),
  urlOf,
  current: () => conversation.chatId,
});

const conversation = new Conversation({
  api,
  outbox: new Outbox({ storage: storage(), newId, owner: page.dataset.accountId }),
  chatId: page.dataset.chatId || null,
  views: {
    messages,
    alert,
    composer: {
      setActivity: (activity) => composer.setActivity(activity),
      restore: (content) => composer.restore(content),
      submit: () => composer.submit(),
    },
    chats: {
      place: (chat) => {
        links.place(chat);
        showTitle(chat.title);
      },
    },
    address: { adopt: (chat) => history.replaceState(null, "", urlOf(chat.id)) },
    announcer: { say: (text) => hook("announcer").replaceChildren(text) },
    reading: scroller,
    banner: {
      refused: () => refreshBanner(),
      accepted: () => banner.maintenance && refreshBanner(),
    },
  },
  system: {
    openStream: openEventStream,
    setTimer: (action, ms) => setTimeout(action, ms),
    clearTimer: (timer) => clearTimeout(timer),
    wait,
    now: () => Date.now(),
  },
});

const composer = new Composer({
  form: hook("composer"),
  takesFocus: matchMedia("(hover: hover)").matches,
  onSubmit: (turn) => conversation.submit(turn),
  onStop: () => conversation.stop(),
});

/** Show what the site says to everybody now. Where that cannot be had, what was said before stays. */
async function refreshBanner() {
  try {
    banner.show(await api.getStatus());
  } catch {
    // Whatever keeps the page from its server is told by what the user does on it.
  }
}

function showTitle(title) {
  if (!title) return;
  hook("chat-title").textContent = title;
  document.title = `${title} · ${page.dataset.siteName}`;
}

/** A button that fetches older items, and goes away when there are none left. */
function wireHistory({ button, load, take }) {
  if (!button) return;
  const past = new History({ load, take });
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      button.hidden = !(await past.older());
    } catch (error) {
      const title = error instanceof Refused ? error.title : "The server cannot be reached";
      alert.show({ title, detail: "Nothing older could be loaded. Try again." });
    }
    button.disabled = false;
  });
}

wireHistory({
  button: hook("earlier"),
  load: (next) => api.listMessages({ chatId: conversation.chatId, limit: PAGE_SIZE, next }),
  take: (results) => {
    const before = messages.oldestSeq;
    scroller.keepingPlace(messages.first, () => results.forEach((message) => messages.put(message)));
    return results.filter(({ seq }) => before === null || seq < before).length;
  },
});
wireHistory({
  button: hook("more-chats"),
  load: (next) => api.listChats({ limit: PAGE_SIZE, next }),
  take: (results) => results.filter((chat) => links.add(chat)).length,
});
wireDetails({ list: hook("messages"), load: async (runId) => detailsOf(await api.getRun(runId)) });
wireDrawer({ opener: hook("drawer-opener"), drawer: hook("drawer"), veil: hook("veil"), behind: page });

function wake() {
  conversation.wake();
  refreshBanner();
}

let hiddenAt = null;
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "hidden") {
    hiddenAt = Date.now();
  } else if (hiddenAt !== null && Date.now() - hiddenAt >= HIDDEN_LONG_MS) {
    wake();
  }
});
addEventListener("online", wake);
addEventListener("pageshow", (event) => {
  if (event.persisted) wake();
});

conversation.start({
  activeRun: page.dataset.activeRunId
    ? { id: page.dataset.activeRunId, events_url: page.dataset.activeEventsUrl, stopping: "stopping" in page.dataset }
    : null,
});
scroller.toEnd();
composer.focus();
