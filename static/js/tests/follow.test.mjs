/** Keeping a run's stream open until the run has ended. */

import assert from "node:assert/strict";
import { describe, it } from "node:test";

import { backoff, RunFollower, urlFrom } from "../follow.mjs";
import { EVENTFUL, EVENTFUL_TEXT, FakeStreams, FakeTimers, after, log, settle } from "./fakes.mjs";

class Gone extends Error {}

function following({ runs = [] } = {}) {
  const streams = new FakeStreams();
  const timers = new FakeTimers();
  const seen = { answers: [], ended: [], settled: [], lost: [], links: [], asked: 0 };
  const follower = new RunFollower({
    runId: "r1",
    eventsUrl: "/runs/r1/events",
    parts: {
      openStream: streams.open,
      loadRun: async () => {
        seen.asked += 1;
        const run = runs.shift() ?? { status: "streaming" };
        if (run instanceof Error) throw run;
        return run;
      },
      isFinal: (error) => error instanceof Gone,
      onAnswer: (answer) => seen.answers.push(answer),
      onLink: (link) => seen.links.push(link),
      onEnded: (answer) => seen.ended.push(answer),
      onSettled: (run) => seen.settled.push(run),
      onLost: (error) => seen.lost.push(error),
      setTimer: timers.set,
      clearTimer: timers.clear,
      random: () => 0,
    },
  });
  follower.open();
  return { follower, streams, timers, seen };
}

describe("a follower", () => {
  it("closes its stream on the terminal event, so that the browser does not reconnect", () => {
    const { follower, streams, seen } = following();
    streams.send(EVENTFUL);
    assert.equal(streams.last.closed, true);
    assert.equal(follower.over, true);
    assert.equal(seen.ended.length, 1);
    assert.equal(seen.ended[0].text, EVENTFUL_TEXT);
  });

  it("reads the whole text when its stream is refused after any event, and opened again from the cursor", async () => {
    for (let cut = 0; cut < EVENTFUL.length; cut += 1) {
      const { follower, streams, timers, seen } = following();
      streams.send(EVENTFUL.slice(0, cut));
      streams.last.handlers.onClosed();
      await settle();
      timers.fire();
      assert.equal(streams.streams.length, 2);
      assert.equal(streams.last.url, urlFrom("/runs/r1/events", follower.answer.cursor));
      streams.send(after(EVENTFUL, follower.answer.cursor));
      assert.equal(seen.ended[0].text, EVENTFUL_TEXT, `cut after ${cut}`);
    }
  });

  it("tells of an end that its stream cannot deliver any more", async () => {
    const { streams, seen, follower } = following({ runs: [{ status: "interrupted", message_id: "m1" }] });
    streams.last.handlers.onClosed();
    await settle();
    assert.deepEqual(seen.settled, [{ status: "interrupted", message_id: "m1" }]);
    assert.equal(follower.over, true);
  });

  it("waits longer each time the server is away, and at once again after it was heard", async () => {
    const { streams, timers, seen } = following({ runs: [new Error("away"), new Error("away"), { status: "streaming" }] });
    streams.last.handlers.onClosed();
    await settle();
    assert.equal(timers.fire(), 500);
    await settle();
    assert.equal(timers.fire(), 1000);
    await settle();
    assert.equal(timers.fire(), 2000);
    assert.equal(streams.streams.length, 2);
    streams.send(EVENTFUL.slice(0, 1));
    streams.last.handlers.onClosed();
    await settle();
    assert.equal(timers.fire(), 500);
    assert.equal(seen.asked, 4);
  });

  it("gives up where asking again is pointless", async () => {
    const { follower, streams, timers, seen } = following({ runs: [new Gone()] });
    streams.last.handlers.onClosed();
    await settle();
    assert.equal(seen.lost.length, 1);
    assert.equal(timers.pending.length, 0);
    assert.equal(follower.over, true);
  });

  it("asks for the run after a reset, and reads a run that goes on from its beginning", async () => {
    const { streams, timers, seen } = following();
    streams.send(EVENTFUL.slice(0, 6));
    streams.send([{ type: "reset_required", id: "1-4", data: { status: "streaming" } }]);
    assert.equal(streams.last.closed, true);
    await settle();
    timers.fire();
    assert.equal(streams.last.url, "/runs/r1/events");
    streams.send(EVENTFUL);
    assert.equal(seen.ended[0].text, EVENTFUL_TEXT);
  });

  it("attaches again from the cursor when the page comes back, and forgets what it was waiting for", async () => {
    const { follower, streams, timers } = following();
    streams.send(EVENTFUL.slice(0, 5));
    const first = streams.last;
    first.handlers.onClosed();
    follower.open();
    await settle();
    assert.equal(first.closed, true);
    assert.equal(streams.last.url, "/runs/r1/events?after=1-3");
    assert.equal(timers.pending.length, 0);
  });

  it("can be opened again past an end that was superseded", () => {
    const { follower, streams, seen } = following();
    streams.send(log(["1-1", "started", { epoch: 1 }], ["1-9", "failed", { code: "x", text: "" }]));
    follower.open();
    assert.equal(streams.last.url, "/runs/r1/events?after=1-9");
    streams.send(
      log(["2-1", "started", { epoch: 2, continues: false }], ["2-2", "delta", { text: "new" }], ["2-9", "completed", {}]),
    );
    assert.deepEqual(seen.ended.map(({ outcome }) => outcome), ["failed", "complete"]);
  });

  it("shows nothing for events that it has seen", () => {
    const { streams, seen } = following();
    streams.send(EVENTFUL.slice(0, 5));
    streams.send(EVENTFUL.slice(0, 5));
    assert.equal(seen.answers.length, 5);
  });

  it("says when the connection breaks and when it is back", () => {
    const { streams, seen } = following();
    streams.last.handlers.onInterrupted();
    streams.last.handlers.onOpen();
    assert.deepEqual(seen.links, ["broken", "live"]);
  });
});

describe("backoff", () => {
  it("doubles up to 15 s, with at most half taken off", () => {
    assert.deepEqual([0, 1, 2, 30].map((tries) => backoff(tries, () => 0)), [500, 1000, 2000, 15_000]);
    assert.equal(backoff(0, () => 1), 250);
  });
});

describe("the address of what follows a cursor", () => {
  it("keeps a query that is there already", () => {
    assert.equal(urlFrom("/e?x=1", "2-3"), "/e?x=1&after=2-3");
    assert.equal(urlFrom("/e", null), "/e");
  });
});
