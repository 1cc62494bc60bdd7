"""Pages of a list whose length nobody counts to the end: counting a million rows takes longer than showing them."""

from functools import cached_property
from typing import Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest

# Rows that can be paged through. What lies beyond is found by search and filters.
REACH = 10_000


class BoundedPaginator(Paginator[Any]):
    """Counts up to REACH and stops there."""

    @cached_property
    def _seen(self) -> int:
        """Rows, at most one more than REACH; a bounded part of one index, whatever the table's size."""
        assert isinstance(self.object_list, QuerySet)
        return self.object_list.order_by().values("pk")[: REACH + 1].count()

    @cached_property
    def count(self) -> int:
        return min(self._seen, REACH)

    @property
    def is_capped(self) -> bool:
        """Whether there are more rows than can be paged through."""
        return self._seen > REACH


class ScreenList(ChangeList):
    """A list that is sorted by the columns that its screen allows, which have an index, and no others.

    Django hides the links of the other columns, and obeys a query string that names them all the same.
    """

    def get_filters(self, request: HttpRequest) -> Any:
        """Raises IncorrectLookupParameters, which Django answers, for NUL, at which Postgres would raise."""
        if any("\0" in text for name, values in request.GET.lists() for text in (name, *values)):
            raise IncorrectLookupParameters("NUL")
        return super().get_filters(request)

    def get_ordering_field(self, field_name: Any) -> Any:
        if self.sortable_by is not None and field_name not in self.sortable_by:
            return None
        return super().get_ordering_field(field_name)
