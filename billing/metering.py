"""Daily usage: the sums of a day are made anew from the ledger wherever an event says that they are out of date.

An event names a user and a day, and no amount. However late it comes, however often, and whoever else works on the same
day: what is written is what the ledger adds up to at that moment.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from datetime import UTC, date, datetime, time, timedelta
from uuid import UUID

from django.contrib.auth import get_user_model
from django.db import transaction
from django.db.models import Max, Min

from billing.models import DailyUsage, UsageEntry, UsageEvent
from billing.sums import COLUMNS, USED

# Events of one transaction. On SQLite it keeps every other writer waiting: about 20 ms for so many of one day.
BATCH = 500
# Users of a day that are in memory at a time when everything is made anew.
PAGE = 2_000
_DAY = timedelta(days=1)
# In the order of `USED`.
_FIGURES = ("runs", *COLUMNS.values())


def note(*, user_id: UUID, at: datetime, pool: str) -> None:
    """Say that the sums of the user's day are out of date; call it in the transaction that writes to the ledger."""
    UsageEvent.objects.create(user_id=user_id, day=at.astimezone(UTC).date(), pool=pool)


def metering_backlog() -> int:
    """How many events nobody has worked off yet."""
    return UsageEvent.objects.count()


def meter(*, limit: int = BATCH) -> int:
    """Make anew the days that the oldest events name, at most `limit` of them, and remove these events.

    Returns how many are gone. None need not mean that there are none left: what another consumer has in hand, and the
    users whose rows somebody holds, are passed over rather than waited for, and have their turn the next time.
    """
    # First without a transaction: nearly always there is nothing, and on SQLite a transaction takes the write lock.
    if not UsageEvent.objects.exists():
        return 0
    with transaction.atomic():
        events = list(UsageEvent.objects.select_for_update(skip_locked=True).order_by("id")[:limit])
        ours, busy = _hold({event.user_id for event in events})
        days: defaultdict[date, set[UUID]] = defaultdict(set)
        for event in events:
            if event.user_id in ours:
                days[event.day].add(event.user_id)
        for day, user_ids in sorted(days.items()):
            _make_anew(day=day, user_ids=user_ids)
        # Those of a deleted user as well: `complete_days` has seen to their days.
        done = [event.pk for event in events if event.user_id not in busy]
        UsageEvent.objects.filter(pk__in=done).delete()
    return len(done)


def complete_days(*, user_id: UUID) -> None:
    """Make what is pending of the user whole, and forget it; call it in the transaction that deletes the user, with
    the user's row locked for that.

    Nothing can be written to the ledger in that name from then on, so that the days that lose it stay right for ever.
    """
    events = UsageEvent.objects.filter(user_id=user_id)
    for day in sorted(set(events.values_list("day", flat=True))):
        _make_anew(day=day, user_ids={user_id})
    events.delete()


def remeter() -> Iterator[tuple[date, int]]:
    """Say of every day of everybody that it is out of date; yields each day, oldest first, with how many users it has.

    Breaking off does no harm, nor does doing it twice. Days without a name are left: nothing can change them.
    """
    for day in _days():
        users = 0
        for page in _users_of(day):
            UsageEvent.objects.bulk_create([UsageEvent(user_id=user_id, day=day, pool="") for user_id in page])
            users += len(page)
        if users:
            yield day, users


def bounds(day: date) -> tuple[datetime, datetime]:
    """The first moment of a day of UTC, and that of the next."""
    begin = datetime.combine(day, time.min, UTC)
    return begin, begin + _DAY


def _hold(user_ids: Collection[UUID]) -> tuple[set[UUID], set[UUID]]:
    """The users whose rows are now locked until the transaction ends, and those whose rows somebody else has locked.

    The lock keeps other consumers off these users' sums: of two that read the ledger, the one that read it first must
    not be the last to write. It also keeps the users themselves: their deletion locks the row first.
    """
    users = get_user_model()._default_manager.filter(pk__in=user_ids)
    ours = set(users.select_for_update(no_key=True, skip_locked=True).values_list("pk", flat=True))
    # Asked afterwards: who is neither ours nor there is gone for good.
    busy = set(users.exclude(pk__in=ours).values_list("pk", flat=True))
    return ours, busy


def _make_anew(*, day: date, user_ids: Collection[UUID]) -> None:
    """Have the day's rows of these users say what the ledger adds up to; the users must be held."""
    begin, end = bounds(day)
    entries = UsageEntry.objects.filter(user_id__in=user_ids, created_at__gte=begin, created_at__lt=end)
    rows = [
        DailyUsage(user_id=user_id, day=day, pool=pool, **dict(zip(_FIGURES, figures, strict=True)))
        for user_id, pool, *figures in entries.order_by()
        .values("user_id", "pool")
        .annotate(**USED)
        .values_list("user_id", "pool", *USED)
    ]
    DailyUsage.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["user", "day", "pool"], update_fields=_FIGURES
    )
    backed = {(row.user_id, row.pool) for row in rows}
    stored = DailyUsage.objects.filter(user_id__in=user_ids, day=day).values_list("pk", "user_id", "pool")
    unbacked = [pk for pk, user_id, pool in stored if (user_id, pool) not in backed]
    if unbacked:
        DailyUsage.objects.filter(pk__in=unbacked).delete()


def _days() -> Iterator[date]:
    """From the first day to the last that the ledger or daily usage know of."""
    moments = UsageEntry.objects.aggregate(first=Min("created_at"), last=Max("created_at")).values()
    known = [moment.astimezone(UTC).date() for moment in moments if moment is not None]
    known += filter(None, DailyUsage.objects.aggregate(first=Min("day"), last=Max("day")).values())
    for number in range((max(known) - min(known)).days + 1 if known else 0):
        yield min(known) + number * _DAY


def _users_of(day: date) -> Iterator[list[UUID]]:
    """The day's users in pages: those with rows in the ledger, and those with sums."""
    begin, end = bounds(day)
    ledger = UsageEntry.objects.filter(user__isnull=False, created_at__gte=begin, created_at__lt=end).order_by()
    daily = DailyUsage.objects.filter(user__isnull=False, day=day).order_by()
    after: dict[str, UUID] = {}
    while page := [
        user_id
        for (user_id,) in ledger.filter(**after)
        .values_list("user_id")
        .union(daily.filter(**after).values_list("user_id"))
        .order_by("user_id")[:PAGE]
    ]:
        yield page
        after = {"user_id__gt": page[-1]}
