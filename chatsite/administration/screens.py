"""What every screen of the admin obeys: acts go to the audit trail, and lists stay fast whatever the table's size.

The site puts `Screen` below every class that is registered with it, those of other packages included, so that apps
write plain `ModelAdmin` classes, and may override what is here.
"""

import contextlib
from collections.abc import Iterable
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import get_fields_from_path, unquote
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone

from chatsite.accounts.models import User
from chatsite.administration import choices, searching
from chatsite.administration.choices import Autocomplete, Rows
from chatsite.administration.paging import BoundedPaginator, ScreenList
from chatsite.audit import trail

HISTORY_LENGTH = 200
# What Django's own list filters put behind a field's name; behind a relation's, also its target's.
_FILTER_LOOKUPS = frozenset({"", "__exact", "__isnull", "__gte", "__lt"})


class Screen(admin.ModelAdmin[Any]):
    """The base of all screens.

    An act that no form describes is recorded with `log_change(request, obj, "cancel")`: a word names the act, where
    Django itself hands over a list of what a form changed.
    """

    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 0
    # Only what has an index may be sorted by: a screen names it.
    sortable_by: ClassVar[Any] = ()
    object_history_template = "administration/history.html"

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ScreenList]:
        return ScreenList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        fields = tuple(self.get_search_fields(request))
        return searching.narrowed(queryset, fields=fields, text=search_term) if fields else queryset, False

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Only the list's own filters: `?content__startswith=` would let anybody who sees the list guess a text.

        Nor what lies behind a filter: `?pool__runs__owner__password__gte=` begins with one.
        """
        assert request is not None
        return any(lookup in _parameters(self.model, item) for item in self.get_list_filter(request))

    def response_action(self, request: HttpRequest, queryset: QuerySet[Any], *args: Any) -> HttpResponse | None:
        """An action takes the rows that were ticked on one page, never all that a search finds: a million, perhaps."""
        ticked = request.POST.getlist(ACTION_CHECKBOX_NAME)
        if not all(choices.can_be_key(self.model, key) for key in ticked):
            self.message_user(request, "There are no such rows. Nothing was done.", messages.ERROR)
            return None
        if request.POST.get("select_across", "0") != "0" or len(ticked) > self.list_per_page:
            self.message_user(request, "Choose rows on one page at a time. Nothing was done.", messages.ERROR)
            return None
        return super().response_action(request, queryset, *args)

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name in self.get_autocomplete_fields(request):
            kwargs.setdefault("widget", Autocomplete(db_field, self.admin_site, using=kwargs.get("using")))
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def formfield_for_manytomany(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        return super().formfield_for_manytomany(db_field, request, **{"form_class": Rows, **kwargs})

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """A form that was fine when it was looked at, and that the database then refused for what somebody else had
        stored meanwhile, is looked at once more: now it says what is in the way.
        """
        if request.method == "POST":
            with contextlib.suppress(IntegrityError):
                return super().changeform_view(request, object_id, form_url, extra_context)
        return super().changeform_view(request, object_id, form_url, extra_context)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """What the audit trail has of one object, for whoever may see both."""
        found = self.get_object(request, unquote(object_id))
        if found is None:
            raise Http404
        may_read_trail = request.user.has_perm("audit.view_auditentry")
        if not may_read_trail or not self.has_view_or_change_permission(request, found):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            "title": f"History of {found}",
            "entries": trail.of_object(instance=found)[:HISTORY_LENGTH],
            "original": found,
            "opts": self.opts,
            **(extra_context or {}),
        }
        return TemplateResponse(request, self.object_history_template, context)

    def log_addition(self, request: HttpRequest, obj: Model, message: Any) -> Any:
        return self._record(request, "add", [obj])

    def log_change(self, request: HttpRequest, obj: Model, message: Any) -> Any:
        if isinstance(message, str):
            return self._record(request, message, [obj])
        return self._record(request, "change", [obj], detail=_fields_of(message))

    def log_views(self, request: HttpRequest, objects: Iterable[Model]) -> Any:
        """Record that these were shown, in one statement."""
        return self._record(request, "view", objects)

    def log_export(self, request: HttpRequest, detail: str) -> Any:
        """Record that the list went out as a file, whole or what `detail` says of it."""
        assert isinstance(request.user, User)
        return trail.record_export(
            actor=request.user,
            model=self.model,
            detail=detail,
            now=timezone.now(),
            request_id=getattr(request, "request_id", ""),
        )

    def log_deletions(self, request: HttpRequest, queryset: Iterable[Model]) -> Any:
        return self._record(request, "delete", queryset)

    def _record(self, request: HttpRequest, action: str, objects: Iterable[Model], detail: str = "") -> Any:
        assert isinstance(request.user, User)
        return trail.record(
            actor=request.user,
            action=action,
            objects=objects,
            detail=detail,
            now=timezone.now(),
            request_id=getattr(request, "request_id", ""),
        )


def _parameters(model: type[Model], item: Any) -> set[str]:
    """What one entry of a `list_filter` may be called in the address."""
    if names := getattr(item, "parameter_names", None):
        return set(names)
    own = getattr(item, "parameter_name", None)
    if own:
        return {own}
    path = str(item[0] if isinstance(item, list | tuple) else item)
    field: Any = get_fields_from_path(model, path)[-1]
    target = {f"__{field.target_field.name}__exact"} if field.is_relation else set()
    return {path + lookup for lookup in _FILTER_LOOKUPS | target}


def _fields_of(message: Any) -> str:
    """The names of the fields that a form changed, and the kinds of rows in it: no values, no rows' names."""
    said = []
    for part in message:
        for what, about in part.items():
            words = [about.get("name", ""), ", ".join(map(str, about.get("fields", ())))]
            said.append(" ".join([what, *filter(None, words)]) if about.get("name") else " ".join(filter(None, words)))
    return "; ".join(filter(None, said))
