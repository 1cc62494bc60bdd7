/** The calls to the REST API, and what can go wrong with one. */

import assert from "node:assert/strict";
import { describe, it } from "node:test";

import { Api, Refused, Unreachable, localPath, retryAfterSeconds } from "../api.mjs";

function serving(body, { status = 200, type = "application/json", headers = {} } = {}) {
  const requests = [];
  const fetch = async (path, options) => {
    requests.push({ path, ...options });
    return new Response(body, { status, headers: { "Content-Type": type, ...headers } });
  };
  return { api: new Api({ fetch, csrfToken: () => "token" }), requests };
}

describe("the API", () => {
  it("sends a turn under its own id and with the CSRF token", async () => {
    const { api, requests } = serving('{"run": {"id": "r1"}}');
    const turn = { content: "Hi", clientTurnId: "t1", pool: null };
    assert.deepEqual(await api.sendMessage({ chatId: "c1", turn }), { run: { id: "r1" } });
    assert.equal(requests[0].path, "/api/v1/chats/c1/messages");
    assert.equal(requests[0].method, "POST");
    assert.equal(requests[0].headers["X-CSRFToken"], "token");
    assert.deepEqual(JSON.parse(requests[0].body), { content: "Hi", client_turn_id: "t1" });
  });

  it("names the pool only where one was chosen", async () => {
    const { api, requests } = serving("{}");
    await api.createChat({ pool: "big" });
    await api.createChat({ pool: null });
    await api.sendMessage({ chatId: "c1", turn: { content: "Hi", clientTurnId: "t1", pool: "big" } });
    assert.deepEqual(requests.map(({ body }) => JSON.parse(body).pool), ["big", undefined, "big"]);
  });

  it("sends no CSRF token where nothing changes", async () => {
    const { api, requests } = serving("{}");
    await api.getChat("c1");
    assert.equal("X-CSRFToken" in requests[0].headers, false);
  });

  it("hands on a refusal in the server's words", async () => {
    const problem = { status: 429, code: "limit_reached", title: "A limit", detail: "40 of 40 used." };
    const { api } = serving(JSON.stringify(problem), {
      status: 429,
      type: "application/problem+json",
      headers: { "Retry-After": "30" },
    });
    await assert.rejects(api.getChat("c1"), (error) => {
      assert.ok(error instanceof Refused);
      assert.deepEqual(
        [error.status, error.code, error.title, error.detail, error.retryAfter],
        [429, "limit_reached", "A limit", "40 of 40 used.", 30],
      );
      return true;
    });
  });

  it("takes a proxy's error page for no answer at all, so that the turn is sent again", async () => {
    const { api } = serving("<html>Bad gateway</html>", { status: 502, type: "text/html" });
    await assert.rejects(api.getChat("c1"), Unreachable);
  });

  it("takes a cut or unreadable response for no answer at all", async () => {
    await assert.rejects(serving('{"run": {').api.getChat("c1"), Unreachable);
    await assert.rejects(serving("<html>", { type: "text/html" }).api.getChat("c1"), Unreachable);
  });

  it("takes a network error for no answer at all", async () => {
    const api = new Api({ fetch: async () => Promise.reject(new TypeError("offline")), csrfToken: () => "" });
    await assert.rejects(api.getChat("c1"), Unreachable);
  });

  it("follows a page's next address on its own host, whatever the proxy made of it", async () => {
    const { api, requests } = serving('{"results": [], "next": null}');
    await api.listMessages({ chatId: "c1", limit: 50 });
    await api.listMessages({ chatId: "c1", limit: 50, next: "http://inside:8000/api/v1/chats/c1/messages?cursor=x%3D" });
    assert.deepEqual(requests.map(({ path }) => path), [
      "/api/v1/chats/c1/messages?limit=50",
      "/api/v1/chats/c1/messages?cursor=x%3D",
    ]);
  });
});

describe("Retry-After", () => {
  it("is read as seconds or as a date", () => {
    assert.equal(retryAfterSeconds("12"), 12);
    assert.equal(retryAfterSeconds("Thu, 01 Jan 1970 00:01:00 GMT", 30_000), 30);
    assert.equal(retryAfterSeconds("soon"), null);
    assert.equal(retryAfterSeconds(null), null);
  });
});

describe("a local path", () => {
  it("is what an absolute or relative URL asks of its host", () => {
    assert.equal(localPath("https://example.org/a/b?c=d"), "/a/b?c=d");
    assert.equal(localPath("/a/b"), "/a/b");
  });
});
