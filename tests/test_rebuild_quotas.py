"""`manage.py rebuild_quotas`."""

from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from billing import api as billing
from billing.contracts import Charge
from chatsite.accounts import accounts
from chatsite.accounts.models import User
from chatsite.management.commands import rebuild_quotas
from inference import store
from inference.cell.link import Cell
from tests.services import Valkey

pytestmark = pytest.mark.django_db


def charged(number: int, *, tokens: int = 7) -> User:
    """Somebody whom the ledger knows."""
    user = accounts.open_account(email=f"{number}@example.org", password=None)
    billing.account_generation(user_id=user.pk)
    billing.record(
        Charge(
            user_id=user.pk, run_id=uuid4(), epoch=1, admission_id=uuid4(), pool="default", reason="completed",
            prompt_tokens=tokens, cached_tokens=0, output_tokens=0, wasted_tokens=0, at=timezone.now(),
        )
    )  # fmt: skip
    return user


def used(user_id: UUID) -> str | None:
    cell: Cell = store.connector().cell()
    found: Any = cell.run(lambda client: client.hget(cell.keys.account(user_id), "used"))
    return None if found is None else str(found)


def test_every_account_that_counts_something_is_rebuilt_with_progress(
    valkey: Valkey, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild_quotas, "STEP", 2)
    users = [charged(number) for number in range(4)]
    idle = accounts.open_account(email="idle@example.org", password=None)
    call_command("rebuild_quotas")
    assert [used(user.pk) for user in users] == ["7"] * 4
    assert used(idle.pk) is None
    assert capsys.readouterr().err.splitlines() == ["2 of 4 accounts are rebuilt.", "4 accounts are rebuilt."]


def test_one_users_account_is_rebuilt_as_often_as_one_likes(valkey: Valkey, capsys: pytest.CaptureFixture[str]) -> None:
    ada, bob = charged(1), charged(2)
    for _ in range(2):
        call_command("rebuild_quotas", "--user", "1@example.org")
    assert (used(ada.pk), used(bob.pk)) == ("7", None)
    assert capsys.readouterr().err.splitlines() == ["Rebuilt.", "Rebuilt."]
    assert billing.account_generation(user_id=ada.pk) == 3


def test_nobody_is_told_from_somebody(valkey: Valkey) -> None:
    with pytest.raises(CommandError, match="There is no account"):
        call_command("rebuild_quotas", "--user", "nobody@example.org")


def test_without_redis_nothing_is_rebuilt_and_it_says_so(db: None) -> None:
    charged(1)
    with pytest.raises(CommandError, match="Redis is away: 0 of 1"):
        call_command("rebuild_quotas")
