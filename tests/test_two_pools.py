"""`TWO_POOLS`: a site that serves a second pool, and one that serves it no more."""

import httpx
import pytest

from tests.client import Api
from tests.stack import running
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(300)


def available(api: Api) -> dict[str, bool]:
    return {pool["slug"]: pool["available"] for pool in api.get("/api/v1/pools")["results"]}


def test_a_second_pool_answers_beside_the_first_and_is_missed_when_nobody_serves_it() -> None:
    with running(engine="scripted", environment={"TWO_POOLS": "1"}) as stack:
        with Api(url=stack.url, key=stack.manage("create_api_key", "somebody@example.com")) as api:
            wait_for(lambda: all(available(api).values()), what="both pools are served")
            wait_for(lambda: api.gauge("chatsite_pool_workers") == 2, what="the default one has two workers")
            assert None not in [stack.pid_of(name) for name in ("worker", "worker-2", "worker-small")]
            chat = api.new_chat()
            run, text = api.ask(chat, "Hello", pool="small")
            assert (run["status"], run["pool"], run["model"]) == ("done", "small", "tiny-random-llama")
            assert text
            assert api.ask(chat, "Hello again")[0]["pool"] == "default"

        stack.stop()
        stack.environment = {name: value for name, value in stack.environment.items() if name != "TWO_POOLS"}
        stack.start()
        with Api(url=stack.url, key=stack.manage("create_api_key", "somebody@example.com")) as api:
            assert available(api) == {"default": True, "small": False}
            assert httpx.get(f"{stack.url}/readyz").json() == {"ready": True, "pools": ["default"]}
            assert stack.pid_of("worker-small") is None
            body = {"content": "Hello", "client_turn_id": "t", "pool": "small"}
            refused = api.http.post(f"/api/v1/chats/{api.new_chat()}/messages", json=body)
            assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
            assert api.ask(chat, "And now?")[0]["pool"] == "default"
