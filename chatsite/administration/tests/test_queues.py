"""The operators' page of pools' queues: its figures, who sees it, and that it stands without Redis."""

import re
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import timezone
from uuid_utils.compat import uuid7

from billing import api as billing
from billing.contracts import Charge
from chatsite.accounts import accounts
from chatsite.accounts.models import User
from chatsite.strip import WIDTH, Strip
from inference import counting, policies, store
from inference.cell import queue, workers
from inference.models import ModelPool
from tests.services import Valkey

pytestmark = pytest.mark.django_db

QUEUES = "/admin/queues/"


@pytest.fixture
def browser(client: Client) -> Client:
    client.force_login(accounts.open_account(email="root@example.org", password=None, administrator=True))
    return client


def page(browser: Client) -> str:
    response = browser.get(QUEUES)
    assert response.status_code == 200
    return " ".join(response.content.decode().split())


def row(shown: str, attribute: str) -> str:
    """The table's row that has this attribute, as text."""
    [found] = re.findall(rf"<tr {attribute}.*?</tr>", shown)
    return " ".join(re.sub("<[^>]*>", " ", found).split())


def beat(*, boot_id: str = "node-1/0123456789abcdef", **figures: Any) -> None:
    cell = store.connector().cell()
    given: dict[str, Any] = {"running": 3, "waiting": 1, "kv_usage": 0.25, "output_tokens": 90_000, "kv_tokens": 46_000}
    report = workers.Report(engine="scripted", model="m", slots=8, **given | figures)
    cell.call(
        workers.heartbeat(cell.keys, pool="default", boot_id=boot_id, report=report, held=(), now_ms=store.now_ms())
    )


def wait(tier: str, *, user: Any = None) -> None:
    """Put a run into the default pool's queue."""
    cell, pool = store.connector().cell(), ModelPool.objects.get(is_default=True)
    waiting = queue.Waiting(
        run=queue.Ticketed(run_id=uuid7(), epoch=1), base_epoch=1, admission_id=uuid4(), user_id=user or uuid4(),
        tier=tier, chat_id=uuid4(), prompt_tokens=100, max_output_tokens=100, since_ms=store.now_ms(),
    )  # fmt: skip
    policy = policies.policy_of(pool.pk)
    cell.call(queue.enqueue(cell.keys, pool=pool.slug, policy=policy, waiting=waiting, now_ms=store.now_ms()))


def test_it_shows_who_waits_what_is_due_to_them_and_who_serves(browser: Client, valkey: Valkey) -> None:
    beat()
    for tier in ("plus", "plus", "free"):
        wait(tier)
    shown = page(browser)
    assert re.search(r"data-waiting> 3 <", shown)
    plus, free = row(shown, 'data-tier="plus"'), row(shown, 'data-tier="free"')
    assert re.search(r" 2 2 ", plus)
    assert re.search(r" 1 1 ", free)
    assert "gives way first" in free
    assert "gives way first" not in plus
    dues = [int(re.findall(r"(\d+) %", line)[0]) for line in (plus, free)]
    assert sum(dues) == 100
    assert dues[0] > dues[1]
    assert f"Due now: plus {dues[0]}%, free {dues[1]}%" in shown
    assert row(shown, "data-worker").startswith("node-1 abcdef scripted 3 of 8 1 25 % 46,000 90,000")


def test_the_systems_own_work_is_named_and_comes_last(browser: Client, valkey: Valkey) -> None:
    beat()
    for tier in ("free", policies.SYSTEM_TIER):
        wait(tier)
    shown = page(browser)
    rows = re.findall(r'<tr data-tier="([^"]*)"', shown)
    assert rows[-1] == policies.SYSTEM_TIER
    system = row(shown, f'data-tier="{policies.SYSTEM_TIER}"')
    assert system.startswith("system: summaries and titles 0.01 ")
    assert re.search(r" 1 1 ", system)
    assert "gives way first" not in system
    assert re.search(r"Due now: [^\"]*, system: summaries and titles \d+%", shown)
    assert f"> {policies.SYSTEM_TIER} <" not in shown, "its key is nobody's word for it"


def test_it_shows_modes_refusals_and_prefix_hits(browser: Client, valkey: Valkey) -> None:
    ModelPool.objects.update(mode="shed_free")
    counting.note(counting.REFUSED, pool="default", tier="free", reason="shed_free")
    counting.note(counting.REFUSED, pool="default", tier="other", reason="shed_free")
    counting.note(counting.OVERFLOWED, pool="default", tier="free", reason="shed_free")
    billing.record(
        Charge(
            user_id=None, run_id=uuid4(), epoch=1, admission_id=uuid4(), pool="default", reason="completed",
            prompt_tokens=1000, cached_tokens=750, output_tokens=5, wasted_tokens=0, at=timezone.now(),
        )
    )  # fmt: skip
    shown = page(browser)
    assert 'data-mode="shed_free"> <strong>sheds free plans</strong>' in shown
    assert re.search(r"Refused: shedding free plans</dt> <dd> 2 <", shown)
    assert re.search(r"Overflowed: shedding free plans</dt> <dd> 1 <", shown)
    assert re.search(r"data-hits> 75 % <", shown)
    assert "No worker serves this pool." in shown


def test_it_stands_without_redis(browser: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    store.connector().close()
    assert "data-redis-away" in page(browser)
    assert "Watch the queues" in browser.get("/admin/").content.decode()


def test_only_who_may_see_pools_sees_it(client: Client, valkey: Valkey) -> None:
    looker = User.objects.create_user(email="looker@example.org", is_staff=True)
    client.force_login(looker)
    assert client.get(QUEUES).status_code == 403
    looker.user_permissions.add(Permission.objects.get(codename="view_modelpool"))
    assert client.get(QUEUES).status_code == 200
    client.logout()
    assert client.get(QUEUES).status_code == 302


def test_a_strip_is_whole_and_keeps_each_parts_colour() -> None:
    strip = Strip.of([("a", 0.5), ("b", 0.0), ("c", 0.5)])
    assert [(piece.label, piece.kind, piece.x) for piece in strip.pieces] == [
        ("a", "part-0", 0.0),
        ("c", "part-2", WIDTH / 2),
    ]
    assert sum(piece.width for piece in strip.pieces) == WIDTH
    assert (strip.said, Strip.of([]).said) == ("a 50%, c 50%", "nobody")
