"""The ledger: one row per settled attempt, which nothing changes; and the account that acceptances lock."""

import threading
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import IntegrityError, connections, transaction

from billing import api as billing
from billing.contracts import Charge
from billing.errors import AccountRebuilt, LedgerIsAppendOnly
from billing.models import Account, UsageEntry


@pytest.fixture
def record(ada: Any, now: datetime) -> Any:
    """Appends a row of Ada's: a completed run of 10 prompt and 5 output tokens."""

    def record_one(**changes: Any) -> Charge:
        given: dict[str, Any] = {
            "user_id": ada.pk,
            "run_id": uuid4(),
            "epoch": 1,
            "admission_id": uuid4(),
            "pool": "default",
            "reason": "completed",
            "prompt_tokens": 10,
            "cached_tokens": 4,
            "output_tokens": 5,
            "wasted_tokens": 0,
            "at": now,
        }
        charge = Charge(**given | changes)
        billing.record(charge)
        return charge

    return record_one


def test_a_row_holds_what_was_charged(record: Any, ada: Any, now: datetime) -> None:
    charge = record()
    [row] = UsageEntry.objects.all()
    assert (row.user_id, row.run_id, row.epoch, row.admission_id) == (ada.pk, charge.run_id, 1, charge.admission_id)
    assert (row.prompt_tokens, row.cached_tokens, row.output_tokens, row.wasted_tokens) == (10, 4, 5, 0)
    assert (row.pool, row.reason, row.created_at) == ("default", "completed", now)


def test_an_attempt_is_charged_once(record: Any) -> None:
    charge = record()
    with pytest.raises(IntegrityError), transaction.atomic():
        record(run_id=charge.run_id)
    record(run_id=charge.run_id, epoch=2)
    assert UsageEntry.objects.count() == 2


def test_a_row_is_never_changed_or_deleted(record: Any) -> None:
    record()
    row = UsageEntry.objects.get()
    row.output_tokens = 0
    for attempt in (
        row.save,
        row.delete,
        UsageEntry.objects.all().delete,
        partial(UsageEntry.objects.update, output_tokens=0),
        partial(UsageEntry.objects.filter(id=row.id).update, output_tokens=0),
    ):
        with pytest.raises(LedgerIsAppendOnly):
            attempt()
    assert UsageEntry.objects.get().output_tokens == 5


def test_a_deleted_users_rows_stay_without_a_name(record: Any, ada: Any) -> None:
    record()
    ada.delete()
    row = UsageEntry.objects.get()
    assert (row.user_id, row.output_tokens) == (None, 5)


def test_no_more_can_be_cached_than_prompted(record: Any) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        record(cached_tokens=11)


@pytest.mark.parametrize("column", ["prompt_tokens", "output_tokens", "wasted_tokens"])
def test_no_charge_is_negative(record: Any, column: str) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        record(**{column: -1, "cached_tokens": 0})


def test_an_admissions_charge_is_the_sum_of_its_rows(record: Any) -> None:
    run_id, admission_id = uuid4(), uuid4()
    record(run_id=run_id, admission_id=admission_id, epoch=1, reason="lost", prompt_tokens=0, cached_tokens=0)
    record(run_id=run_id, admission_id=admission_id, epoch=2, wasted_tokens=99)
    record()
    assert billing.charged(admission_id=admission_id) == 20
    assert billing.charged(admission_id=uuid4()) == 0


def test_what_a_user_used_leaves_out_what_a_reservation_still_covers(record: Any, ada: Any) -> None:
    live = record().admission_id
    record()
    assert billing.used_tokens(user_id=ada.pk) == 30
    assert billing.used_tokens(user_id=ada.pk, except_admissions=[live]) == 15
    assert billing.used_tokens(user_id=uuid4()) == 0


def test_an_account_is_opened_on_first_use(ada: Any) -> None:
    assert billing.account_generation(user_id=ada.pk) == 1
    assert billing.account_generation(user_id=ada.pk) == 1
    assert Account.objects.count() == 1


def test_every_rebuild_is_a_new_generation(ada: Any) -> None:
    assert [billing.advance_generation(user_id=ada.pk) for _ in range(3)] == [2, 3, 4]
    assert billing.account_generation(user_id=ada.pk) == 4


def test_an_acceptance_under_an_old_generation_is_void(ada: Any) -> None:
    billing.advance_generation(user_id=ada.pk)
    with transaction.atomic():
        billing.lock_account(user_id=ada.pk, generation=2)
    billing.advance_generation(user_id=ada.pk)
    with pytest.raises(AccountRebuilt) as refusal, transaction.atomic():
        billing.lock_account(user_id=ada.pk, generation=2)
    assert (refusal.value.expected, refusal.value.current) == (2, 3)


@pytest.mark.django_db(transaction=True)
def test_a_rebuild_waits_for_the_acceptance_that_holds_the_account(ada: Any) -> None:
    user_id: UUID = ada.pk
    billing.account_generation(user_id=user_id)
    locked, finish = threading.Event(), threading.Event()
    order: list[str] = []

    def accept() -> None:
        try:
            with transaction.atomic():
                billing.lock_account(user_id=user_id, generation=1)
                locked.set()
                assert finish.wait(20)
                order.append("accepted")
        finally:
            connections.close_all()

    def rebuild() -> None:
        try:
            billing.advance_generation(user_id=user_id)
            order.append("rebuilt")
        finally:
            connections.close_all()

    threads = [threading.Thread(target=accept), threading.Thread(target=rebuild)]
    threads[0].start()
    assert locked.wait(20)
    threads[1].start()
    threads[1].join(timeout=0.2)
    assert threads[1].is_alive()
    finish.set()
    for thread in threads:
        thread.join(timeout=30)
    assert order == ["accepted", "rebuilt"]


def test_a_users_charges_come_oldest_first_as_they_were_recorded(record: Any, ada: Any) -> None:
    first, second = record(), record(reason="cancelled")
    assert billing.charges_of(user_id=ada.pk) == [first, second]
    assert billing.charges_of(user_id=uuid4()) == []


def test_generations_are_found_for_those_who_have_an_account(ada: Any) -> None:
    nobody = uuid4()
    assert billing.account_generations(user_ids=[ada.pk, nobody]) == {}
    billing.advance_generation(user_id=ada.pk)
    assert billing.account_generations(user_ids=[ada.pk, nobody]) == {ada.pk: 2}


def test_rows_say_in_the_admin_what_they_are(record: Any, ada: Any) -> None:
    charge = record()
    assert str(UsageEntry.objects.get()) == f"{charge.run_id} epoch 1: completed"
    billing.advance_generation(user_id=ada.pk)
    assert str(Account.objects.get()) == f"account of {ada.pk}"
