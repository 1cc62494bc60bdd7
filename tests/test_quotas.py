"""A whole site with two web processes and the scripted engine: budgets hold against sends at once and lost counters."""

import json
import secrets
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
import redis

from chatsite import processes
from inference.cell.keys import Keys
from tests import services
from tests.client import Api
from tests.recovery import Readers
from tests.services import Valkey
from tests.stack import ROOT, Stack, running
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(300)

# A longer answer than is asked for, so that each is cut at, and charged, exactly so many tokens.
OUTPUT = 100
QUESTION = "Hello [[tps=400 tokens=200]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    id: UUID
    key: str


class Quotas:
    """The site as its operator sees it: who has which budget, what the ledger says and what Redis counts."""

    def __init__(self, site: Stack, server: Valkey) -> None:
        self._site = site
        self._server = server

    def user(self, *, budget_tokens: int = 1_000_000, **limits: int) -> User:
        """Somebody new, with a plan of their own of which next to nothing is refilled."""
        email = f"{uuid4().hex}@example.com"
        key = self._site.manage("create_api_key", email)
        numbers = {"concurrent_runs": 50, "budget_tokens": budget_tokens, "refill_per_hour": 1} | limits
        found = self._shell(
            "from django.utils import timezone; from chatsite.accounts.models import User; "
            "from billing.models import Plan, Subscription; "
            f"user = User.objects.get(email={email!r}); "
            f"plan = Plan.objects.create(slug=str(user.pk), name='Own', **{numbers}); "
            "Subscription.objects.create(user=user, plan=plan, starts_at=timezone.now()); "
            "print(json.dumps(str(user.pk)))"
        )
        return User(id=UUID(found), key=key)

    def charged(self, users: list[User]) -> dict[UUID, int]:
        """By the ledger."""
        sums = self._shell(
            "from django.db.models import F, Sum; from billing.models import UsageEntry; "
            "rows = UsageEntry.objects.order_by().values_list('user_id').annotate("
            "n=Sum(F('prompt_tokens') + F('output_tokens'))); "
            "print(json.dumps({str(user): n for user, n in rows}))"
        )
        return {user.id: sums.get(str(user.id), 0) for user in users}

    def counted(self, users: list[User]) -> dict[UUID, dict[str, str]]:
        """By Redis; nothing where it does not know the account, and for nobody while it is away."""
        with redis.Redis(port=self._server.port, decode_responses=True) as client:
            try:
                info: Any = client.info("server")
                keys = Keys(info["run_id"])
                rows: list[Any] = [client.hgetall(keys.account(user.id)) for user in users]
            except redis.ConnectionError:
                return {user.id: {} for user in users}
        return {user.id: dict(row) for user, row in zip(users, rows, strict=True)}

    def _shell(self, code: str) -> Any:
        return json.loads(self._site.manage("shell", "--verbosity=0", "--command", f"import json; {code}"))


@pytest.fixture(scope="module")
def redis_of_its_own() -> Iterator[Valkey]:
    with services.valkey() as server:
        yield server


@pytest.fixture(scope="module")
def site(redis_of_its_own: Valkey) -> Iterator[Stack]:
    environment = {
        "REDIS_URL": redis_of_its_own.url,
        "SECRET_KEY": secrets.token_hex(32),
        "WORKER_SLOTS": "16",
        "API_REQUESTS_PER_MINUTE": "0",
        "API_REQUESTS_PER_MINUTE_PER_ADDRESS": "0",
    }
    with running(engine="scripted", environment=environment) as stack:
        yield stack


@pytest.fixture(scope="module")
def urls(site: Stack) -> Iterator[list[str]]:
    """The site's web process and another one like it."""
    port = processes.free_port()
    command = [sys.executable, "-m", "chatsite.web_server", "--verbosity", "0", "--bind", "127.0.0.1"]
    with (site.state_dir / "second-web.log").open("ab") as output:
        second = processes.spawn(
            [*command, "--port", str(port), "chatsite.asgi:application"],
            environment=site.environment,
            folder=ROOT,
            output=output,
        )
    url = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        try:
            return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    try:
        wait_for(ready, what="the second web process is ready", seconds=60)
        yield [site.url, url]
    finally:
        processes.kill_group(second)


@pytest.fixture(scope="module")
def quotas(site: Stack, redis_of_its_own: Valkey) -> Quotas:
    return Quotas(site, redis_of_its_own)


@pytest.fixture(scope="module")
def prompt(site: Stack, quotas: Quotas) -> int:
    """How many tokens the question takes, as the first one of a chat."""
    with Api(url=site.url, key=quotas.user().key) as api:
        run, _ = api.ask(api.new_chat(), QUESTION, max_output_tokens=OUTPUT)
    assert run["usage"]["output"] == OUTPUT
    return int(run["usage"]["prompt"])


def test_of_fifty_sends_at_once_through_two_processes_a_budget_for_five_admits_five(
    urls: list[str], quotas: Quotas, prompt: int
) -> None:
    each = prompt + OUTPUT
    user = quotas.user(budget_tokens=6 * each - 1, output_floor=OUTPUT)
    with ExitStack() as opened, ThreadPoolExecutor(max_workers=50) as threads:
        apis = [opened.enter_context(Api(url=url, key=user.key)) for url in urls]
        chats = [apis[0].new_chat() for _ in range(50)]

        def send(number: int) -> int:
            body = {"content": QUESTION, "client_turn_id": "1", "max_output_tokens": OUTPUT}
            answer = apis[number % 2].http.post(f"/api/v1/chats/{chats[number]}/messages", json=body)
            if answer.status_code == 429:
                assert answer.json()["limit"] == "token_budget"
            return answer.status_code

        # The user's very first ones: no process knows the account yet.
        assert Counter(threads.map(send, range(50))) == {202: 5, 429: 45}
        runs = [apis[0].get(f"/api/v1/chats/{chat}")["active_run"] for chat in chats]
        for run in runs:
            if run is not None:
                list(apis[1].follow(run["id"]))
    wait_for(lambda: quotas.counted([user])[user.id]["used"] == str(5 * each), what="all are settled")
    assert quotas.charged([user]) == {user.id: 5 * each}
    assert abs(float(quotas.counted([user])[user.id]["debt"]) - 5 * each) < 1


def test_budgets_are_back_a_minute_after_redis_was_lost_under_load(
    site: Stack, quotas: Quotas, prompt: int, redis_of_its_own: Valkey
) -> None:
    users = [quotas.user(budget_tokens=100_000) for _ in range(6)]
    for number, user in enumerate(users, start=1):
        with Api(url=site.url, key=user.key) as api:
            for _ in range(number % 3 + 1):
                api.ask(api.new_chat(), QUESTION, max_output_tokens=OUTPUT)
    busy = users[:2]
    readers = [Readers(url=site.url, key=user.key) for user in busy]
    for reader in readers:
        reader.ask(*(f"Long {number} [[tps=20 tokens=200]]" for number in range(2)), max_output_tokens=160)
    redis_of_its_own.kill()
    redis_of_its_own.start()
    wait_for(lambda: all(quotas.counted(users).values()), what="every account is back", seconds=60)
    # Whoever has no answer under way stands where the ledger says, at once.
    ledger, counted = quotas.charged(users[2:]), quotas.counted(users[2:])
    assert {user: int(row["used"]) for user, row in counted.items()} == ledger
    assert all(abs(float(counted[user]["debt"]) - ledger[user]) < 1 for user in ledger)
    for reader in readers:
        assert {answer.events[-1].type for answer in reader.finish()} <= {"completed", "reset_required"}
        reader.close()

    def at_rest() -> bool:
        return {user: int(row["used"]) for user, row in quotas.counted(busy).items()} == quotas.charged(busy)

    wait_for(at_rest, what="the answers under way are settled", seconds=30)
    due = quotas.charged(busy)
    assert all(charged >= 2 * 160 for charged in due.values())
    # Nothing was lost or doubled: what is owed is what was charged.
    assert all(abs(float(quotas.counted(busy)[user]["debt"]) - charged) < 1 for user, charged in due.items())
