"""Debts replayed from the ledger, and the checkpoints that shorten the replay."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from billing import api as billing
from billing import debts
from billing.contracts import Charge, Debt
from billing.models import Account, Adjustment

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


class Book:
    """One user's charges and checkpoints. A token a minute comes back."""

    def __init__(self, user: Any, *, now: datetime) -> None:
        self.user, self.now = user, now
        billing.account_generation(user_id=user.pk)

    def charge(self, tokens: int, *, ago: timedelta, admission_id: UUID | None = None, epoch: int = 1) -> UUID:
        admission_id = admission_id or uuid4()
        billing.record(
            Charge(
                user_id=self.user.pk, run_id=admission_id, epoch=epoch, admission_id=admission_id, pool="default",
                reason="completed", prompt_tokens=tokens - 1, cached_tokens=0, output_tokens=1, wasted_tokens=1000,
                at=self.now - ago,
            )
        )  # fmt: skip
        return admission_id

    def adjust(self, tokens: int, *, ago: timedelta) -> None:
        Adjustment.objects.create(user=self.user, tokens=tokens, reason="a test", created_at=self.now - ago)

    def debt(self, *, except_admissions: Sequence[UUID] = (), refill_per_hour: int | None = 60) -> Debt:
        return billing.debt_of(
            user_id=self.user.pk,
            refill_per_hour=refill_per_hour,
            now=self.now,
            except_admissions=except_admissions,
        )

    def owed_now(self, **more: Any) -> float:
        return round(self.debt(**more).later(refill_per_hour=60, now=self.now).tokens, 6)

    def note(self, *, ago: timedelta, live: Sequence[UUID] = (), refill_per_hour: int | None = 60) -> bool:
        return billing.checkpoint(
            user_id=self.user.pk,
            until=self.now - ago,
            refill_per_hour=refill_per_hour,
            live_admissions=live,
        )

    @property
    def noted(self) -> tuple[int, timedelta | None]:
        """Tokens, and how long ago they were owed."""
        account = Account.objects.get()
        return account.debt_tokens, None if account.debt_at is None else self.now - account.debt_at


@pytest.fixture
def book(ada: Any, now: datetime) -> Book:
    return Book(ada, now=now)


def test_who_was_charged_nothing_owes_nothing(book: Book) -> None:
    assert book.debt() == Debt(tokens=0, at=book.now)


def test_what_was_charged_is_refilled_from_then_on(book: Book) -> None:
    book.charge(100, ago=30 * MINUTE)
    assert book.debt() == Debt(tokens=100, at=book.now - 30 * MINUTE)
    assert book.owed_now() == 70
    book.charge(10, ago=10 * MINUTE)
    assert book.debt() == Debt(tokens=90, at=book.now - 10 * MINUTE)
    assert book.owed_now() == 80


def test_a_budget_that_was_full_in_between_is_no_fuller_later(book: Book) -> None:
    book.charge(5, ago=2 * HOUR)
    book.charge(40, ago=10 * MINUTE)
    assert book.owed_now() == 30


def test_what_a_reservation_covers_is_left_out(book: Book) -> None:
    covered = book.charge(100, ago=30 * MINUTE)
    book.charge(50, ago=20 * MINUTE)
    assert book.owed_now(except_admissions=[covered]) == 30


def test_without_a_budget_nothing_is_owed(book: Book) -> None:
    book.charge(100, ago=MINUTE)
    assert book.debt(refill_per_hour=None) == Debt(tokens=0, at=book.now)


def test_adjustments_count_at_their_time_and_never_give_more_than_is_owed(book: Book) -> None:
    book.charge(100, ago=30 * MINUTE)
    book.adjust(-500, ago=20 * MINUTE)
    assert book.owed_now() == 0
    book.adjust(25, ago=10 * MINUTE)
    book.charge(10, ago=5 * MINUTE)
    assert book.owed_now() == 25


def test_an_adjustment_of_cost_alone_changes_no_budget(book: Book) -> None:
    Adjustment.objects.create(user=book.user, cost=5, reason="a test", created_at=book.now)
    assert book.debt() == Debt(tokens=0, at=book.now)


def test_anothers_charges_are_not_mine(book: Book, django_user_model: Any) -> None:
    eve = Book.__new__(Book)
    eve.user, eve.now = django_user_model.objects.create_user(email="eve@example.org"), book.now
    eve.charge(100, ago=MINUTE)
    eve.adjust(100, ago=MINUTE)
    assert book.owed_now() == 0


def test_a_checkpoint_changes_nothing_of_what_is_owed(book: Book) -> None:
    book.charge(100, ago=60 * MINUTE)
    book.charge(50, ago=30 * MINUTE)
    book.adjust(-20, ago=15 * MINUTE)
    before = book.owed_now()
    assert book.note(ago=45 * MINUTE)
    assert (book.noted, book.owed_now()) == ((85, 45 * MINUTE), before)
    assert book.note(ago=5 * MINUTE)
    assert (book.noted, book.owed_now()) == ((75, 5 * MINUTE), before)


def test_a_checkpoint_ends_before_its_own_moment(book: Book) -> None:
    book.charge(100, ago=10 * MINUTE)
    assert book.note(ago=10 * MINUTE)
    assert (book.noted, book.owed_now()) == ((0, 10 * MINUTE), 90)


def test_a_checkpoint_rounds_up(book: Book) -> None:
    book.charge(100, ago=10 * MINUTE)
    assert book.note(ago=9.5 * MINUTE)
    assert book.noted == (100, 9.5 * MINUTE)


def test_a_checkpoint_never_goes_back(book: Book) -> None:
    book.charge(100, ago=HOUR)
    assert book.note(ago=10 * MINUTE)
    assert not book.note(ago=10 * MINUTE)
    assert not book.note(ago=20 * MINUTE)
    assert book.noted == (50, 10 * MINUTE)


def test_a_checkpoint_ends_before_the_first_charge_of_a_live_admission(book: Book) -> None:
    live = book.charge(100, ago=40 * MINUTE)
    book.charge(30, ago=50 * MINUTE)
    book.charge(30, ago=20 * MINUTE)
    assert book.note(ago=10 * MINUTE, live=[live])
    assert book.noted == (20, 40 * MINUTE)
    assert not book.note(ago=10 * MINUTE, live=[live]), "it cannot go on meanwhile"
    # Its reservation is gone: now it counts.
    assert book.owed_now() == 20 + 100 + 30 - 40
    assert book.note(ago=10 * MINUTE)


def test_a_checkpoint_of_who_has_no_budget_owes_nothing(book: Book) -> None:
    book.charge(100, ago=40 * MINUTE)
    assert book.note(ago=10 * MINUTE, refill_per_hour=None)
    assert book.noted == (0, 10 * MINUTE)


def test_a_checkpoint_without_any_charge_is_empty(book: Book) -> None:
    assert book.note(ago=10 * MINUTE)
    assert book.noted == (0, 10 * MINUTE)


def test_of_two_checkpoints_at_once_the_first_counts(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    book.charge(100, ago=HOUR)
    replay = debts._charges

    def overtaken(*arguments: Any, **named: Any) -> Any:
        Account.objects.update(debt_tokens=7, debt_at=book.now)
        return replay(*arguments, **named)

    monkeypatch.setattr(debts, "_charges", overtaken)
    assert not book.note(ago=10 * MINUTE)
    assert book.noted == (7, timedelta(0))


def due(book: Book, **more: Any) -> bool:
    return billing.due_for_checkpoint(older_than=book.now - HOUR, limit=10, **more) == [book.user.pk]


def test_who_was_charged_since_an_old_checkpoint_is_due_for_one(book: Book) -> None:
    assert not due(book)
    book.charge(10, ago=3 * HOUR)
    assert due(book)
    book.note(ago=2 * HOUR)
    assert not due(book), "nothing was charged since"
    book.charge(10, ago=MINUTE)
    assert due(book)
    book.note(ago=HOUR)
    assert not due(book), "it is new enough"


def test_who_was_charged_since_the_checkpoint_comes_back_first(book: Book, django_user_model: Any) -> None:
    others = [
        Book(django_user_model.objects.create_user(email=f"{number}@example.org"), now=book.now) for number in range(3)
    ]
    for one in (book, *others[:2]):
        one.charge(10, ago=2 * HOUR)
    book.note(ago=HOUR)
    expected = sorted(one.user.pk for one in others[:2])
    assert billing.charged_lately(after=None, limit=10) == expected
    assert billing.charged_lately(after=None, limit=1) == expected[:1]
    assert billing.charged_lately(after=expected[0], limit=10) == expected[1:]
    assert billing.ever_charged() == sorted([book.user.pk, *expected])
