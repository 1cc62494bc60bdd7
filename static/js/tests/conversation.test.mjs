/** The course of one chat in one tab. */

import assert from "node:assert/strict";
import { describe, it } from "node:test";

import { Refused, Unreachable } from "../api.mjs";
import { Conversation } from "../conversation.mjs";
import { Outbox } from "../outbox.mjs";
import { EVENTFUL, EVENTFUL_TEXT, FakeStreams, FakeTimers, log, settle } from "./fakes.mjs";

const CHAT = { id: "c1", title: "Hi", last_active_at: "t1", active_run: null };
const STOPPED = log(["1-9", "cancelled", { code: "user", text: "" }]);
const refused = (status, code) =>
  new Refused({ status, problem: { code, title: code, detail: "Because." }, retryAfter: null });

const full = () =>
  new Refused({ status: 503, problem: { code: "pool_full", title: "We are full", wait_seconds: 40 }, retryAfter: 9 });

/** A tab: what was called, what is shown. `fails` maps an API call's name to the errors it gives first. */
function tab({ chatId = "c1", chat = CHAT, stored = [], fails = {}, kept = new Map(), draft = "", completeCount = 2 } = {}) {
  const streams = new FakeStreams();
  const timers = new FakeTimers();
  const shown = {
    messages: [], echoes: [], answers: {}, lost: [], retrying: [], activity: [], alert: null, said: [], places: [], banner: [],
  };
  const calls = [];
  const call = (name, result) => async (...args) => {
    calls.push([name, ...args]);
    const error = fails[name]?.shift();
    if (error) throw error;
    return typeof result === "function" ? result() : result;
  };
  const world = { chat, stored, draft };
  const accepted = () => ({
    run: { id: "r1", status: "queued" },
    message: { id: "m1", seq: 1, content: "Hi", run_id: "r1" },
    events_url: "/runs/r1/events",
  });
  const views = {
    messages: {
      addSending: (content) => {
        const echo = { content, log: [] };
        shown.echoes.push(echo);
        const note = (name) => () => echo.log.push(name);
        return { waiting: note("waiting"), accepted: note("accepted"), unsent: note("unsent"), retrying: note("retrying"), remove: note("removed") };
      },
      answerOf: (runId) => ({
        update: (answer, how) => (shown.answers[runId] = { ...answer, ...how }),
        link: () => {},
        lost: (text) => shown.lost.push(text),
      }),
      put: (message) => shown.messages.push(message),
      completeCount,
      retrying: (runId) => {
        shown.retrying.push(runId);
        return { over: () => shown.retrying.push("over") };
      },
    },
    composer: {
      setActivity: (activity) => shown.activity.push(activity),
      restore: (content) => {
        if (world.draft) return false;
        world.draft = content;
        return true;
      },
      submit: () => conversation.submit({ content: world.draft, pool: null }),
    },
    alert: { show: (alert) => (shown.alert = alert), clear: () => (shown.alert = null) },
    chats: { place: (place) => shown.places.push(place) },
    address: { adopt: (adopted) => shown.places.push(["adopted", adopted.id]) },
    announcer: { say: (text) => shown.said.push(text) },
    reading: { grew: () => {}, toEnd: () => {} },
    banner: { refused: () => shown.banner.push("refused"), accepted: () => shown.banner.push("accepted") },
  };
  const api = {
    createChat: call("createChat", { id: "c1" }),
    sendMessage: call("sendMessage", accepted),
    getChat: call("getChat", () => world.chat),
    listMessages: call("listMessages", () => ({ results: world.stored, next: null })),
    getRun: call("getRun", { status: "done" }),
    cancelRun: call("cancelRun", {}),
    retryRun: call("retryRun", { id: "r1", status: "queued", epoch: 2, events_url: "/runs/r1/events" }),
  };
  const storage = {
    getItem: (key) => kept.get(key) ?? null,
    setItem: (key, value) => kept.set(key, value),
    removeItem: (key) => kept.delete(key),
  };
  let ids = 0;
  const outbox = new Outbox({ storage, newId: () => `t${(ids += 1)}`, owner: "ada" });
  const system = { openStream: streams.open, setTimer: timers.set, clearTimer: timers.clear, wait: async () => {}, now: () => 1000 };
  const conversation = new Conversation({ api, outbox, views, system, chatId });
  const named = (name) => calls.filter(([each]) => each === name);
  return { conversation, streams, timers, shown, calls, named, world, kept };
}

describe("sending", () => {
  it("makes a new chat, gives it its address, sends, and follows the answer to its end", async () => {
    const { conversation, streams, shown, calls } = tab({ chatId: null });
    await conversation.submit({ content: "Hi", pool: null });
    assert.deepEqual(calls.map(([name]) => name), ["createChat", "sendMessage", "getChat"]);
    assert.deepEqual(shown.places[0], ["adopted", "c1"]);
    assert.equal(streams.last.url, "/runs/r1/events");
    assert.equal(shown.activity.at(-1), "answering");
    streams.send(EVENTFUL);
    await settle();
    assert.equal(shown.answers.r1.text, EVENTFUL_TEXT);
    assert.equal(shown.activity.at(-1), "idle");
  });

  it("repeats a turn under one id when the response is lost", async () => {
    const { conversation, named, shown } = tab({ fails: { sendMessage: [new Unreachable(), new Unreachable()] } });
    await conversation.submit({ content: "Hi", pool: null });
    const ids = named("sendMessage").map(([, { turn }]) => turn.clientTurnId);
    assert.deepEqual(ids, ["t1", "t1", "t1"]);
    assert.deepEqual(shown.echoes[0].log, ["waiting", "waiting", "accepted"]);
  });

  it("offers to try again, under the same id, when it gave up", async () => {
    const { conversation, named, shown } = tab({
      fails: { sendMessage: Array.from({ length: 8 }, () => new Unreachable()) },
    });
    await conversation.submit({ content: "Hi", pool: null });
    assert.equal(shown.echoes[0].log.at(-1), "unsent");
    await shown.alert.action.run();
    assert.equal(new Set(named("sendMessage").map(([, { turn }]) => turn.clientTurnId)).size, 1);
    assert.equal(shown.echoes.length, 1);
    assert.equal(shown.echoes[0].log.at(-1), "accepted");
  });

  it("puts a refused text back and shows the refusal", async () => {
    const { conversation, shown, world, kept } = tab({ fails: { sendMessage: [refused(429, "limit_reached")] } });
    await conversation.submit({ content: "Hi", pool: null });
    assert.equal(world.draft, "Hi");
    assert.equal(shown.echoes[0].log.at(-1), "removed");
    assert.equal(shown.alert.title, "limit_reached");
    assert.equal(shown.activity.at(-1), "idle");
    assert.equal(kept.size, 0);
  });

  it("offers a text that a full server refused again after the wait, under its id", async () => {
    const { conversation, shown, named, world, kept } = tab({ fails: { sendMessage: [full()] } });
    await conversation.submit({ content: "Hi", pool: null });
    assert.equal(world.draft, "Hi");
    assert.equal(kept.size, 1);
    assert.equal(shown.alert.action.afterS, 9);
    await shown.alert.action.run();
    assert.deepEqual(named("sendMessage").map(([, { turn }]) => turn.clientTurnId), ["t1", "t1"]);
    assert.equal(shown.echoes.at(-1).log.at(-1), "accepted");
  });

  it("offers it from its place on the page when the user has begun another", async () => {
    const { conversation, shown, named, world } = tab({ draft: "Next", fails: { sendMessage: [full()] } });
    await conversation.submit({ content: "Hi", pool: null });
    await shown.alert.action.run();
    assert.deepEqual(named("sendMessage").map(([, { turn }]) => turn.content), ["Hi", "Hi"]);
    assert.deepEqual(shown.echoes[0].log, ["unsent", "retrying", "accepted"]);
    assert.equal(world.draft, "Next");
  });

  it("keeps a refused text on the page when the user has begun another", async () => {
    const { conversation, shown } = tab({ draft: "Next", fails: { sendMessage: [refused(429, "limit_reached")] } });
    await conversation.submit({ content: "Hi", pool: null });
    assert.equal(shown.echoes[0].log.at(-1), "unsent");
  });

  it("tells of a maintenance and keeps the text through a reload, which sends nothing by itself", async () => {
    const kept = new Map();
    const before = tab({ kept, fails: { sendMessage: [refused(503, "maintenance")] } });
    await before.conversation.submit({ content: "Hi", pool: null });
    assert.equal(before.world.draft, "Hi");
    assert.equal(before.shown.alert.detail, "Because.");
    assert.deepEqual(before.shown.banner, ["refused"]);
    const reloaded = tab({ kept });
    reloaded.conversation.start({ activeRun: null });
    await settle();
    assert.equal(reloaded.world.draft, "Hi");
    assert.deepEqual(reloaded.calls, []);
    await reloaded.conversation.submit({ content: "Hi", pool: null });
    assert.equal(reloaded.named("sendMessage")[0][1].turn.clientTurnId, "t1");
    assert.deepEqual(reloaded.shown.banner, ["accepted"]);
    assert.equal(kept.size, 0);
  });

  it("follows the answer that keeps the chat busy, and shows what was asked elsewhere", async () => {
    const busy = { ...CHAT, active_run: { id: "r9", events_url: "/runs/r9/events" } };
    const { conversation, streams, shown } = tab({
      chat: busy,
      stored: [{ id: "m9", seq: 9 }, { id: "m8", seq: 8 }],
      fails: { sendMessage: [refused(409, "chat_busy")] },
    });
    await conversation.submit({ content: "Hi", pool: null });
    assert.equal(streams.last.url, "/runs/r9/events");
    assert.deepEqual(shown.messages.map(({ id }) => id), ["m8", "m9"]);
    assert.equal(shown.alert.title, "chat_busy");
  });

  it("offers to log in when the login ran out, and sends the turn after that", async () => {
    const kept = new Map();
    const before = tab({ kept, fails: { sendMessage: [refused(401, "not_authenticated")] } });
    await before.conversation.submit({ content: "Hi", pool: null });
    assert.equal(before.shown.alert.login, true);
    const back = tab({ kept });
    back.conversation.start({ activeRun: null });
    await settle();
    assert.equal(back.named("sendMessage")[0][1].turn.clientTurnId, "t1");
  });
});

describe("a reload", () => {
  it("follows the answer that is under way from its beginning", async () => {
    const { conversation, streams, shown } = tab();
    conversation.start({ activeRun: { id: "r1", events_url: "/runs/r1/events" } });
    assert.equal(streams.last.url, "/runs/r1/events");
    streams.send(EVENTFUL);
    assert.equal(shown.answers.r1.text, EVENTFUL_TEXT);
  });

  it("sends a turn again whose fate it left open, under its id", async () => {
    const kept = new Map();
    const before = tab({ kept, fails: { sendMessage: Array.from({ length: 8 }, () => new Unreachable()) } });
    await before.conversation.submit({ content: "Hi", pool: null });
    const reloaded = tab({ kept });
    reloaded.conversation.start({ activeRun: null });
    await settle();
    assert.equal(reloaded.named("sendMessage")[0][1].turn.clientTurnId, "t1");
    assert.equal(kept.size, 0);
  });

  it("leaves it to the user to send a turn from long ago", async () => {
    const turn = { content: "Hi", pool: null, clientTurnId: "t0" };
    const kept = new Map([["chatsite.unsent-turn", JSON.stringify({ owner: "ada", chatId: "c1", turn, at: -3_600_000 })]]);
    const { conversation, world, calls } = tab({ kept });
    conversation.start({ activeRun: null });
    await settle();
    assert.equal(world.draft, "Hi");
    assert.deepEqual(calls, []);
  });

  it("does not send another chat's turn", async () => {
    const turn = { content: "Hi", pool: null, clientTurnId: "t0" };
    const kept = new Map([["chatsite.unsent-turn", JSON.stringify({ owner: "ada", chatId: "c2", turn, at: 1000 })]]);
    const { conversation, world, calls } = tab({ kept });
    conversation.start({ activeRun: null });
    await settle();
    assert.deepEqual([world.draft, calls], ["", []]);
  });
});

describe("stopping", () => {
  it("cancels the run and shows so until the answer has ended", async () => {
    const { conversation, streams, shown, named } = tab();
    conversation.start({ activeRun: { id: "r1", events_url: "/runs/r1/events" } });
    await conversation.stop();
    assert.deepEqual(named("cancelRun"), [["cancelRun", "r1"]]);
    assert.equal(shown.answers.r1.stopping, true);
    assert.equal(shown.activity.at(-1), "stopping");
    streams.send(STOPPED);
    await settle();
    assert.equal(shown.answers.r1.outcome, "stopped");
    assert.equal(shown.activity.at(-1), "idle");
  });

  it("is still shown after a reload", async () => {
    const { conversation, streams, shown, named } = tab();
    conversation.start({ activeRun: { id: "r1", events_url: "/runs/r1/events", stopping: true } });
    assert.equal(shown.answers.r1.stopping, true);
    assert.equal(shown.activity.at(-1), "stopping");
    await conversation.stop();
    assert.deepEqual(named("cancelRun"), []);
    streams.send(STOPPED);
    await settle();
    assert.equal(shown.activity.at(-1), "idle");
  });

  it("can be asked for again when it failed", async () => {
    const { conversation, shown, named } = tab({ fails: { cancelRun: [refused(503, "unavailable")] } });
    conversation.start({ activeRun: { id: "r1", events_url: "/runs/r1/events" } });
    await conversation.stop();
    assert.equal(shown.activity.at(-1), "answering");
    assert.equal(shown.alert.title, "unavailable");
    await conversation.stop();
    assert.equal(named("cancelRun").length, 2);
  });

  it("does nothing where nothing is being answered", async () => {
    const { conversation, calls } = tab();
    await conversation.stop();
    assert.deepEqual(calls, []);
  });
});

describe("retrying", () => {
  const ANEW = log(
    ["0-1", "queued", { position: 0, wait_seconds: 0, reason: "retry" }],
    ["2-1", "started", { epoch: 2, reason: "retry", continues: false }],
    ["2-2", "delta", { text: "Whole." }],
    ["2-9", "completed", {}],
  );

  it("asks for the run anew and follows the new attempt in the old one's place", async () => {
    const { conversation, streams, shown, calls } = tab();
    await conversation.retry("r1");
    assert.deepEqual(calls.map(([name]) => name), ["retryRun", "getChat"]);
    assert.deepEqual(shown.retrying, ["r1", "over"]);
    assert.equal(streams.last.url, "/runs/r1/events");
    assert.equal(shown.answers.r1.text, "");
    assert.equal(shown.activity.at(-1), "answering");
    streams.send(ANEW);
    await settle();
    assert.deepEqual([shown.answers.r1.text, shown.answers.r1.outcome], ["Whole.", "complete"]);
    assert.equal(shown.activity.at(-1), "idle");
  });

  it("shows nothing of the attempt before, should the stream still begin with it", async () => {
    const { conversation, streams, shown } = tab();
    await conversation.retry("r1");
    const old = log(["1-1", "started", { epoch: 1 }], ["1-2", "delta", { text: "Half" }], ["1-9", "failed", {}]);
    for (const event of old) streams.last.handlers.onEvent(event);
    assert.deepEqual([shown.answers.r1.text, shown.answers.r1.phase], ["", "waiting"]);
    assert.equal(streams.last.closed, false);
    streams.send(ANEW.slice(1));
    await settle();
    assert.equal(shown.answers.r1.text, "Whole.");
  });

  it("happens once however often it is asked for", async () => {
    const { conversation, named } = tab();
    await Promise.all([conversation.retry("r1"), conversation.retry("r1")]);
    await conversation.retry("r1");
    assert.equal(named("retryRun").length, 1);
  });

  it("is repeated when the response is lost", async () => {
    const { conversation, named, shown } = tab({ fails: { retryRun: [new Unreachable(), new Unreachable()] } });
    await conversation.retry("r1");
    assert.equal(named("retryRun").length, 3);
    assert.equal(shown.activity.at(-1), "answering");
  });

  it("shows a refusal, keeps the answer, and can be asked for again", async () => {
    const { conversation, named, shown } = tab({ fails: { retryRun: [refused(429, "limit_reached")] } });
    await conversation.retry("r1");
    assert.equal(shown.alert.title, "limit_reached");
    assert.deepEqual([shown.answers, shown.activity.at(-1)], [{}, "idle"]);
    await conversation.retry("r1");
    assert.equal(named("retryRun").length, 2);
    assert.equal(shown.alert, null);
  });

  it("shows what there is where another tab has gone on with the chat", async () => {
    const chat = { ...CHAT, active_run: { id: "r2", events_url: "/runs/r2/events" } };
    const stored = [{ id: "m3", seq: 3, role: "user", content: "And then?", run_id: "r2" }];
    const { conversation, streams, shown } = tab({ chat, stored, fails: { retryRun: [refused(409, "chat_busy")] } });
    await conversation.retry("r1");
    assert.deepEqual(shown.messages, stored);
    assert.equal(streams.last.url, "/runs/r2/events");
    assert.equal(shown.activity.at(-1), "answering");
  });
});

describe("catching up", () => {
  it("shows the stored answer when its stream cannot be had any more", async () => {
    const { conversation, streams, shown } = tab({ stored: [{ id: "m2", seq: 2 }] });
    conversation.start({ activeRun: { id: "r1", events_url: "/runs/r1/events" } });
    streams.last.handlers.onClosed();
    await settle();
    assert.deepEqual(shown.messages, [{ id: "m2", seq: 2 }]);
    assert.equal(shown.activity.at(-1), "idle");
  });

  it("attaches again when the page comes back in the middle of an answer", async () => {
    const { conversation, streams } = tab();
    conversation.start({ activeRun: { id: "r1", events_url: "/runs/r1/events" } });
    streams.send(EVENTFUL.slice(0, 5));
    await conversation.wake();
    assert.equal(streams.last.url, "/runs/r1/events?after=1-3");
  });

  it("shows and follows what another device asked meanwhile", async () => {
    const { conversation, streams, shown, world } = tab();
    world.chat = { ...CHAT, last_active_at: "t2", active_run: { id: "r2", events_url: "/runs/r2/events" } };
    world.stored = [{ id: "m3", seq: 3 }];
    await conversation.wake();
    assert.deepEqual(shown.messages, [{ id: "m3", seq: 3 }]);
    assert.equal(streams.last.url, "/runs/r2/events");
  });

  it("fetches nothing where nothing happened", async () => {
    const { conversation, named } = tab();
    await conversation.wake();
    await conversation.wake();
    assert.equal(named("listMessages").length, 1);
  });

  it("goes on past an end that a retry of the same run superseded", async () => {
    const { conversation, streams, shown, world } = tab();
    conversation.start({ activeRun: { id: "r1", events_url: "/runs/r1/events" } });
    world.chat = { ...CHAT, active_run: { id: "r1", events_url: "/runs/r1/events" } };
    streams.send(STOPPED);
    await settle();
    assert.equal(streams.last.url, "/runs/r1/events?after=1-9");
    assert.equal(shown.activity.at(-1), "answering");
  });

  it("says so when the rest of an answer cannot be had", async () => {
    const { conversation, streams, shown } = tab({ fails: { getRun: [refused(404, "not_found")] } });
    conversation.start({ activeRun: { id: "r1", events_url: "/runs/r1/events" } });
    streams.last.handlers.onClosed();
    await settle();
    assert.equal(shown.lost.length, 1);
    assert.equal(shown.alert.title, "not_found");
    assert.equal(shown.activity.at(-1), "idle");
  });
});

describe("a title", () => {
  const FIRST = { id: "r1", events_url: "/runs/r1/events" };
  const titles = (shown) => shown.places.map(({ title }) => title);

  it("that a model makes of the first answer is shown when it is there", async () => {
    const { conversation, streams, timers, shown, world, named } = tab({ completeCount: 1 });
    conversation.start({ activeRun: FIRST });
    streams.send(EVENTFUL);
    await settle();
    world.chat = { ...CHAT, title: "About Rome" };
    assert.equal(timers.fire(), 2000);
    await settle();
    assert.deepEqual(titles(shown), ["Hi", "About Rome"]);
    assert.deepEqual(timers.pending, []);
    assert.equal(named("getChat").length, 2);
  });

  it("is not looked for after later answers, nor after one that is not whole", async () => {
    for (const [completeCount, events] of [[2, EVENTFUL], [0, STOPPED], [1, STOPPED]]) {
      const { conversation, streams, timers } = tab({ completeCount });
      conversation.start({ activeRun: FIRST });
      streams.send(events);
      await settle();
      assert.deepEqual(timers.pending, []);
    }
  });

  it("is not looked for where it has come with the answer's end", async () => {
    const { conversation, streams, timers, world } = tab({ completeCount: 1 });
    await conversation.submit({ content: "Hi", pool: null });
    world.chat = { ...CHAT, title: "About Rome" };
    streams.send(EVENTFUL);
    await settle();
    assert.deepEqual(timers.pending, []);
  });

  it("is looked for where the answer's end was found without its stream", async () => {
    const { conversation, streams, timers } = tab({ completeCount: 1 });
    conversation.start({ activeRun: FIRST });
    streams.last.handlers.onClosed();
    await settle();
    assert.equal(timers.pending.length, 1);
  });

  it("that the owner has given meanwhile ends the looking", async () => {
    const { conversation, streams, timers, world } = tab({ completeCount: 1 });
    conversation.start({ activeRun: FIRST });
    streams.send(EVENTFUL);
    await settle();
    world.chat = { ...CHAT, title: "Mine" };
    await conversation.wake();
    assert.deepEqual(timers.pending, []);
  });

  it("leaves it to a return to the tab to find what was asked elsewhere", async () => {
    const { conversation, streams, timers, world, shown } = tab({ completeCount: 1 });
    conversation.start({ activeRun: FIRST });
    streams.send(EVENTFUL);
    await settle();
    world.chat = { ...CHAT, title: "About Rome", last_active_at: "t2" };
    world.stored = [{ id: "m3", seq: 3 }];
    timers.fire();
    await settle();
    await conversation.wake();
    assert.deepEqual(shown.messages, [{ id: "m3", seq: 3 }]);
  });
});

describe("a screen reader", () => {
  it("hears changes of state and the finished answer, not every piece of it", async () => {
    const { conversation, streams, shown } = tab();
    conversation.start({ activeRun: { id: "r1", events_url: "/runs/r1/events" } });
    streams.send([
      ...log(["1-1", "started", { epoch: 1 }]),
      ...Array.from({ length: 100 }, (_, at) => ({ id: `1-${at + 2}`, type: "delta", data: { text: "a " } })),
      ...log(["1-999", "completed", { finish_reason: "stop" }]),
    ]);
    assert.deepEqual(shown.said, ["Reading the conversation…", "Answering…", `Finished\n${"a ".repeat(100)}`]);
  });
});

describe("the wait in line", () => {
  const queued = (...rows) => log(...rows.map((data, at) => [`0-${at + 1}`, "queued", { wait_seconds: 9, ...data }]));

  it("is said aloud where it is news, and not with every place", async () => {
    const { conversation, streams, shown } = tab();
    await conversation.submit({ content: "Hi", pool: null });
    const places = [9, 8, 6, 4, 3, 0].map((position) => ({ position }));
    streams.send(queued(...places));
    assert.deepEqual(shown.said.map((text) => text.split(",")[0]), ["10th in line", "5th in line", "Next in line"]);
    assert.deepEqual(shown.answers.r1.queue.position, 0);
  });

  it("is said when the place got worse, with the reason", async () => {
    const { conversation, streams, shown } = tab();
    await conversation.submit({ content: "Hi", pool: null });
    streams.send(queued({ position: 2 }, { position: 5, reason: "overtaken" }));
    assert.match(shown.said.at(-1), /^6th in line, about 9 s, others go first/);
  });
});

describe("a retry that finds no place", () => {
  it("is offered again after the wait", async () => {
    const { conversation, shown, named } = tab({ fails: { retryRun: [full()] } });
    await conversation.retry("r1");
    assert.equal(shown.alert.action.afterS, 9);
    await shown.alert.action.run();
    assert.equal(named("retryRun").length, 2);
    assert.equal(shown.alert, null);
  });
});
