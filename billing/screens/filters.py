"""What the lists of ledger rows are filtered by: each has an index with the order of the list in it."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.contrib.admin import ListFilter, SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import Min, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from billing.models import UsageEntry

_DAY = timedelta(days=1)
# Of the list's own parameters: where it stood, which another choice of rows makes meaningless.
_POSITION = ("p", "e")


class PoolFilter(SimpleListFilter):
    """By the pools that rows name, those that are gone included."""

    title = parameter_name = "pool"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(slug, slug) for slug in _pools()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Raises IncorrectLookupParameters, which Django answers, for a pool that no row names."""
        if self.value() is None:
            return queryset
        if self.value() not in dict(self.lookup_choices):
            raise IncorrectLookupParameters(self.parameter_name)
        return queryset.filter(pool=self.value())


def _pools() -> Iterator[str]:
    """From one to the next along the index: to read them off the rows would take as long as there are rows."""
    slug: str | None = ""
    while slug := UsageEntry.objects.filter(pool__gt=slug).aggregate(next=Min("pool"))["next"]:
        yield slug


class DaysFilter(ListFilter):
    """From one day to another, both included, in UTC. Either may be left open."""

    title = "day (UTC)"
    template = "admin/billing/days_filter.html"
    parameter_names = ("from", "to")

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        texts = {name: params.pop(name, [""])[-1] for name in self.parameter_names}
        self.since, self.until = (_day(texts[name]) for name in self.parameter_names)
        self.used_parameters = {name: text for name, text in texts.items() if text}
        left = (*self.parameter_names, *_POSITION)
        # What the form of two dates has to hand on.
        self.others = [(name, text) for name in request.GET if name not in left for text in request.GET.getlist(name)]

    def has_output(self) -> bool:
        return True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.since is not None:
            queryset = queryset.filter(created_at__gte=_midnight(self.since))
        if self.until is not None and self.until < date.max:
            queryset = queryset.filter(created_at__lt=_midnight(self.until + _DAY))
        return queryset

    def choices(self, changelist: Any) -> Iterator[dict[str, Any]]:
        today = timezone.now().astimezone(UTC).date()
        first = today.replace(day=1)
        before = first - _DAY
        periods = {
            "Any day": (None, None),
            "Today": (today, today),
            "Past 7 days": (today - 6 * _DAY, today),
            "This month": (first, today),
            "Last month": (before.replace(day=1), before),
        }
        # On the first of a month, today is all of it: the first that fits is shown as chosen.
        chosen = next((display for display, days in periods.items() if days == (self.since, self.until)), None)
        for display, (since, until) in periods.items():
            days = {"from": since and since.isoformat(), "to": until and until.isoformat()}
            yield {
                "selected": display == chosen,
                "query_string": changelist.get_query_string(days),
                "display": display,
            }


def _day(text: str) -> date | None:
    if not text:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise IncorrectLookupParameters(text) from error


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), tzinfo=UTC)
