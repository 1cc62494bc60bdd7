"""A list of the admin as CSV: all rows that its filters and search find, however many, in pages of constant memory."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from io import StringIO
from typing import Any, ClassVar
from uuid import UUID

from django.conf import settings
from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.http import urlencode

PAGE = 2_000
# What spreadsheets take for the beginning of a formula, in the widths that they know.
_FORMULA = tuple("=+-@\t\r\n＝＋－＠")
# Of a list's parameters: which page it shows, how, and that it found nothing in what it was asked.
_OF_THE_PAGE = ("p", "o", "e", "all", "_popup", "_to_field", "_facets")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: its name in the first line, the field it comes from, and how that is written."""

    name: str
    field: str
    written: Callable[[Any], str]


def text(value: object) -> str:
    """What somebody may have chosen, so that no spreadsheet computes it: `'=1+1`."""
    written = "" if value is None else str(value)
    return f"'{written}" if written.startswith(_FORMULA) or written.lstrip().startswith(_FORMULA) else written


def number(value: int) -> str:
    return str(value)


def identifier(value: UUID | None) -> str:
    return "" if value is None else str(value)


def moment(value: datetime) -> str:
    """ISO 8601, UTC."""
    return value.astimezone(UTC).isoformat()


def parts(rows: QuerySet[Any], *, columns: Sequence[Column], until: datetime) -> Iterator[bytes]:
    """The lines of all rows made `until` then, oldest first: a page of them in each part, read when it is asked for.

    Pages begin where the one before ended, so that each is one look into an index, nothing is held between them, and
    rows that are written meanwhile shift none. The last column is the currency of all amounts.
    """
    yield _lines([[*(column.name for column in columns), "currency"]])
    fields = [column.field for column in columns]
    found = rows.filter(created_at__lte=until).order_by("created_at", "id").values_list("created_at", "id", *fields)
    page = list(found[:PAGE])
    while page:
        yield _lines(
            [
                *(column.written(value) for column, value in zip(columns, values, strict=True)),
                settings.CURRENCY,
            ]
            for _, _, *values in page
        )
        at, last, *_ = page[-1]
        page = list(found.filter(~Q(created_at=at, id__lte=last), created_at__gte=at)[:PAGE])


def _lines(rows: Any) -> bytes:
    written = StringIO()
    csv.writer(written).writerows(rows)
    return written.getvalue().encode()


class CsvExport(admin.ModelAdmin[Any]):
    """A list with a link that exports it. Its rows have `created_at`, which its indexes are in the order of."""

    csv_columns: ClassVar[Sequence[Column]]
    change_list_template = "admin/billing/exported_list.html"
    # The common base has it, which this app knows nothing of.
    log_export: Callable[[HttpRequest, str], Any]

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.export_view)
        return [path("export/", view, name=f"billing_{self.opts.model_name}_export"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: Mapping[str, Any] | None = None) -> Any:
        asked = [pair for pair in _asked(request) if pair[0] not in _OF_THE_PAGE]
        url = reverse(f"admin:billing_{self.opts.model_name}_export")
        shown = {"export_url": f"{url}?{urlencode(asked)}" if asked else url}
        return super().changelist_view(request, shown | dict(extra_context or {}))

    def export_view(self, request: HttpRequest) -> HttpResponseBase:
        """The rows of the list that has the same address but for `export/`; recorded before the first is read."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method != "GET":
            return HttpResponseNotAllowed(["GET"])
        try:
            rows = self.get_changelist_instance(request).queryset
        except IncorrectLookupParameters:
            return self._back(request)
        now = timezone.now()
        self.log_export(request, _in_words(_asked(request)))
        response = StreamingHttpResponse(
            parts(rows, columns=self.csv_columns, until=now), content_type="text/csv; charset=utf-8; header=present"
        )
        name = f"{self.opts.model_name}-{now:%Y%m%dT%H%M%SZ}.csv"
        response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
        return response

    def _back(self, request: HttpRequest) -> HttpResponse:
        """As the list itself answers a question that means nothing."""
        return redirect(f"{reverse(f'admin:billing_{self.opts.model_name}_changelist')}?e=1")


def _asked(request: HttpRequest) -> list[tuple[str, str]]:
    return [(name, value) for name, values in request.GET.lists() for value in values]


def _in_words(asked: Sequence[tuple[str, str]]) -> str:
    """What was filtered by. Of a search only that there was one: it may be somebody's address."""
    return ", ".join("search" if name == "q" else f"{name}={value}" for name, value in asked if value) or "everything"
