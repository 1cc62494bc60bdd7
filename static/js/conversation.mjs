/**
 * Owns the course of one chat in one tab: send, follow, stop, retry, catch up. No DOM: what it shows goes to the views.
 */

import { Refused, Unreachable } from "./api.mjs";
import { RunFollower } from "./follow.mjs";
import { refusalText, remarks, statusText } from "./labels.mjs";
import { patiently } from "./outbox.mjs";
import { isNews } from "./queueing.mjs";
import { TitleWatch } from "./titling.mjs";

const SEND_DELAYS_MS = [500, 1000, 2000, 4000, 8000, 15_000, 15_000];
const RESEND_WITHIN_MS = 10 * 60_000; // A turn left longer ago goes back to the composer, for the user to decide.
const PAGE_SIZE = 50;

const UNREACHABLE = {
  title: "The server cannot be reached",
  detail: "Your message is kept here. Sending it again cannot make a second one.",
};

const NOT_RETRIED = {
  title: "The server cannot be reached",
  detail: "Trying again cannot give two answers.",
};

/** Whether asking again is pointless. */
const isFinal = (error) => error instanceof Refused && error.status < 500 && error.status !== 429;

export class Conversation {
  #api;
  #outbox;
  #views;
  #system;
  #chatId;
  #follower = null;
  #live = null;
  #retrying = false;
  #lastActive = null;
  #title = null;
  #titling;

  /**
   * views: messages (MessageList), composer {setActivity, restore, submit}, alert {show, clear}, chats {place}, address
   * {adopt}, announcer {say}, reading {grew, toEnd}, banner {refused, accepted}: what a send has found out about a
   * maintenance. An alert's action {label, run, afterS} can be taken after so many seconds.
   * system: openStream, setTimer, clearTimer, wait(ms), now() in ms.
   */
  constructor({ api, outbox, views, system, chatId }) {
    this.#api = api;
    this.#outbox = outbox;
    this.#views = views;
    this.#system = system;
    this.#chatId = chatId;
    // Not by `#refreshChat`: what it notes of the chat, `wake` would take for shown.
    this.#titling = new TitleWatch({
      load: () => api.getChat(this.#chatId),
      show: (chat) => views.chats.place(chat),
      isFinal,
      setTimer: system.setTimer,
      clearTimer: system.clearTimer,
    });
  }

  get chatId() {
    return this.#chatId;
  }

  /** Take up what the page found: an active run {id, events_url, stopping}, and a turn whose fate a reload left open. */
  start({ activeRun }) {
    if (activeRun) {
      this.#follow({ runId: activeRun.id, eventsUrl: activeRun.events_url });
      if (activeRun.stopping) this.#setStopping(this.#live, true);
    }
    const left = this.#outbox.left();
    if (!left || left.chatId !== this.#chatId) return;
    const isOnItsWay = left.at !== null && this.#system.now() - left.at < RESEND_WITHIN_MS;
    if (this.#chatId && isOnItsWay) this.#send(left.turn);
    else this.#views.composer.restore(left.turn.content);
  }

  /** Send what the user wrote. `pool` is null unless the user chose one. */
  submit({ content, pool }) {
    return this.#send(this.#outbox.turn({ content, pool }));
  }

  /** End the answer, from whichever process gives it. Closing the page never does that. */
  async stop() {
    if (!this.#live || this.#live.stopping) return;
    const live = this.#live;
    this.#setStopping(live, true);
    try {
      await this.#patiently(() => this.#api.cancelRun(live.runId));
    } catch (error) {
      this.#setStopping(live, false);
      this.#report(error, { title: "The answer could not be stopped", detail: "The server cannot be reached." });
    }
  }

  /** Have the last answer, which was stopped, broke off or failed, given anew in its place. */
  async retry(runId) {
    if (this.#live || this.#retrying) return;
    this.#retrying = true;
    const place = this.#views.messages.retrying(runId);
    this.#views.alert.clear();
    this.#views.composer.setActivity("sending");
    try {
      const run = await this.#patiently(() => this.#api.retryRun(runId));
      place.over();
      this.#follow({ runId, eventsUrl: run.events_url, since: run.epoch });
      await this.#refreshChat();
    } catch (error) {
      place.over();
      this.#views.composer.setActivity(this.#live ? "answering" : "idle");
      if (error.code === "maintenance") this.#views.banner.refused();
      this.#report(error, NOT_RETRIED, () => this.retry(runId));
      // Another tab or device has gone on with the chat: show what there is.
      const chat = error.status === 409 ? await this.#refreshChat() : null;
      if (chat) await this.#catchUp(chat);
    } finally {
      this.#retrying = false;
    }
  }

  /** The page was hidden or the network away: attach again, or fetch what was missed. */
  async wake() {
    if (this.#follower && !this.#follower.over) {
      this.#follower.open();
      return;
    }
    if (!this.#chatId) return;
    const before = this.#lastActive;
    const chat = await this.#refreshChat();
    if (chat && (chat.active_run || chat.last_active_at !== before)) await this.#catchUp(chat);
  }

  async #send(turn) {
    const echo = this.#views.messages.addSending(turn.content);
    this.#views.reading.toEnd();
    await this.#deliver({ turn, echo });
  }

  async #deliver({ turn, echo }) {
    this.#views.alert.clear();
    this.#views.composer.setActivity("sending");
    let accepted;
    try {
      accepted = await this.#post({ turn, echo });
    } catch (error) {
      this.#views.composer.setActivity(this.#live ? "answering" : "idle");
      await this.#notSent({ error, turn, echo });
      return;
    }
    this.#outbox.accepted();
    echo.accepted(accepted.message);
    this.#views.banner.accepted();
    this.#follow({ runId: accepted.run.id, eventsUrl: accepted.events_url });
    await this.#refreshChat();
  }

  async #post({ turn, echo }) {
    const keep = () => this.#outbox.keep({ chatId: this.#chatId, turn, now: this.#system.now() });
    const onWaiting = () => echo.waiting();
    keep();
    if (!this.#chatId) {
      const chat = await this.#patiently(() => this.#api.createChat({ pool: turn.pool }), onWaiting);
      this.#chatId = chat.id;
      this.#views.address.adopt(chat);
      keep();
    }
    return this.#patiently(() => this.#api.sendMessage({ chatId: this.#chatId, turn }), onWaiting);
  }

  async #notSent({ error, turn, echo }) {
    if (error instanceof Unreachable) {
      echo.unsent();
      const again = () => {
        echo.retrying();
        return this.#deliver({ turn, echo });
      };
      this.#views.alert.show({ ...UNREACHABLE, action: { label: "Try again", run: again } });
      return;
    }
    this.#keepRefused({ error, turn });
    const isBack = this.#views.composer.restore(turn.content);
    if (isBack) echo.remove();
    else echo.unsent();
    this.#report(error, UNREACHABLE, () => {
      // What is in the composer is sent as it is by then; the text of before keeps its turn's id.
      if (isBack) return this.#views.composer.submit();
      echo.retrying();
      return this.#deliver({ turn, echo });
    });
    if (error.code === "maintenance") this.#views.banner.refused();
    if (error.code === "chat_busy") {
      const chat = await this.#refreshChat();
      if (chat) await this.#catchUp(chat);
    }
  }

  /** What a reload finds of a refused turn. */
  #keepRefused({ error, turn }) {
    const status = error instanceof Refused ? error.status : null;
    // A login that ran out comes back to this page: the turn is then still to be sent.
    if (status === 401) return;
    // The text is not at fault, and who waits for better times may well reload the page.
    if (status === 503) this.#outbox.setAside({ chatId: this.#chatId, turn });
    else this.#outbox.forget();
  }

  #follow({ runId, eventsUrl, since = 0 }) {
    this.#follower?.close();
    const live = { runId, view: this.#views.messages.answerOf(runId), answer: null, stopping: false, said: null };
    this.#live = live;
    this.#follower = new RunFollower({
      runId,
      eventsUrl,
      since,
      parts: {
        ...this.#system,
        loadRun: (id) => this.#api.getRun(id),
        isFinal,
        onAnswer: (answer) => this.#draw(live, answer),
        onLink: (link) => live.view.link(link),
        onEnded: () => this.#ended(live),
        onSettled: (run) => this.#settled(live, run),
        onLost: (error) => this.#lost(live, error),
      },
    });
    this.#draw(live, this.#follower.answer);
    this.#views.composer.setActivity("answering");
    this.#follower.open();
  }

  #draw(live, answer) {
    const before = live.answer;
    live.answer = answer;
    live.view.update(answer, { stopping: live.stopping });
    this.#views.reading.grew();
    // A screen reader hears changes of state and the whole answer at its end, not every piece of it.
    if (answer.phase === "ended") {
      this.#views.announcer.say(`${statusText(answer)}\n${answer.text}`);
    } else if (before && (before.phase !== answer.phase || remarks(before).length !== remarks(answer).length)) {
      live.said = answer.queue;
      this.#views.announcer.say([statusText(answer), ...remarks(answer).map(({ text }) => text)].join(". "));
    } else if (!live.stopping && isNews(answer.queue, live.said)) {
      live.said = answer.queue;
      this.#views.announcer.say(statusText(answer));
    }
  }

  #setStopping(live, stopping) {
    live.stopping = stopping;
    if (live !== this.#live) return;
    live.view.update(live.answer, { stopping });
    this.#views.composer.setActivity(stopping ? "stopping" : "answering");
    if (stopping) this.#views.announcer.say("Stopping");
  }

  async #ended(live) {
    this.#release(live);
    const before = this.#title;
    const chat = await this.#refreshChat();
    if (live.answer.outcome === "complete" && !chat?.active_run) this.#expectTitle(before);
    if (!chat?.active_run || this.#live) return;
    if (chat.active_run.id === live.runId) {
      // The end that was replayed has been superseded by a retry of the same run.
      this.#live = live;
      live.stopping = false;
      this.#views.composer.setActivity("answering");
      this.#follower.open();
    } else {
      await this.#catchUp(chat);
    }
  }

  async #settled(live, run) {
    this.#release(live);
    const before = this.#title;
    try {
      await this.#patiently(() => this.#fetchLatest());
      this.#views.announcer.say("The answer has ended");
    } catch (error) {
      this.#lost(live, error);
      return;
    }
    await this.#refreshChat();
    if (run.status === "done") this.#expectTitle(before);
  }

  /**
   * Of a chat's first whole answer a model makes a title, soon. `before` is the title of before the answer's end, null
   * where none is known: another one by now is that title.
   */
  #expectTitle(before) {
    if (this.#views.messages.completeCount !== 1) return;
    if (before === null || before === this.#title) this.#titling.begin(this.#title);
  }

  #lost(live, error) {
    this.#release(live);
    live.view.lost("The rest of this answer could not be loaded. Reload the page.");
    this.#report(error, { title: "The connection was lost", detail: "Reload the page to see the whole answer." });
  }

  #release(live) {
    if (this.#live !== live) return;
    this.#live = null;
    this.#views.composer.setActivity("idle");
  }

  async #catchUp(chat) {
    try {
      await this.#fetchLatest();
    } catch (error) {
      this.#report(error, { title: "New messages could not be loaded", detail: "Reload the page." });
      return;
    }
    if (chat.active_run) this.#follow({ runId: chat.active_run.id, eventsUrl: chat.active_run.events_url });
  }

  async #fetchLatest() {
    const page = await this.#api.listMessages({ chatId: this.#chatId, limit: PAGE_SIZE });
    for (const message of [...page.results].reverse()) this.#views.messages.put(message);
    this.#views.reading.grew();
  }

  /** The chat as it is now, or null where it cannot be had: its title is no reason to trouble the reader. */
  async #refreshChat() {
    let chat;
    try {
      chat = await this.#api.getChat(this.#chatId);
    } catch {
      return null;
    }
    this.#lastActive = chat.last_active_at;
    this.#title = chat.title;
    this.#titling.seen(chat.title);
    this.#views.chats.place(chat);
    return chat;
  }

  #patiently(action, onWaiting) {
    return patiently(action, { delays: SEND_DELAYS_MS, wait: this.#system.wait, onWaiting });
  }

  /** `again()` asks once more what was refused: offered where the server is full, and says when to. */
  #report(error, unreachable, again = null) {
    if (error instanceof Unreachable) {
      this.#views.alert.show(unreachable);
    } else if (error instanceof Refused) {
      const offered = again && error.code === "pool_full";
      const action = offered ? { label: "Try again", run: again, afterS: error.retryAfter ?? 0 } : null;
      this.#views.alert.show({ ...refusalText(error), action, login: error.status === 401 });
    } else {
      throw error;
    }
  }
}
