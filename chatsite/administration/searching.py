"""How the search box of a list becomes conditions that indexes answer.

Django's own search compares ids as upper-case text and looks for addresses inside joined rows: both read the whole
table. Here a term that is an id is compared as one, and an address is first looked up among the users.
"""

from functools import reduce
from operator import or_
from typing import Any
from uuid import UUID

from django.contrib.admin.utils import get_fields_from_path
from django.core.exceptions import FieldDoesNotExist, ValidationError
from django.db import connection
from django.db.models import EmailField, Field, Model, Q, QuerySet, UUIDField
from django.utils.text import smart_split, unescape_string_literal

from chatsite.accounts.models import User

LAST_CHARACTER = "\U0010ffff"
_LOOKUPS = {"=": "exact", "^": "startswith", "@": "search"}


def narrowed(queryset: QuerySet[Any], *, fields: tuple[str, ...], text: str) -> QuerySet[Any]:
    """The rows in which every term of `text` matches one of `fields`, which are written as in `search_fields`."""
    for term in terms_of(text):
        asked = _owners(queryset.model, fields, term) or fields
        conditions = [found for field in asked if (found := _condition(queryset.model, field, term)) is not None]
        if not conditions:
            return queryset.none()
        queryset = queryset.filter(reduce(or_, conditions))
    return queryset


def terms_of(text: str) -> list[str]:
    """The words of a search, and what stands in quotation marks."""
    return [
        unescape_string_literal(bit) if bit[:1] in "\"'" and bit[:1] == bit[-1:] else bit for bit in smart_split(text)
    ]


def _owners(model: type[Model], fields: tuple[str, ...], term: str) -> list[str]:
    """The fields that name a user by id, where the term is a user's: nothing else has that id, and of two conditions
    with `or` all that they find, a million rows perhaps, would have to be sorted.
    """
    term_id = _id(term)
    paths = [field for field in fields if field.endswith("__id") and _is_users(model, field.lstrip("=^@"))]
    return paths if paths and term_id is not None and User.objects.filter(pk=term_id).exists() else []


def _is_users(model: type[Model], path: str) -> bool:
    return _field(model, path).model is User


def _condition(model: type[Model], search_field: str, term: str) -> Q | None:
    """What the term means for this field; None when it cannot be one of its values, or the field is not there."""
    lookup = _LOOKUPS.get(search_field[:1], "icontains")
    path = search_field.lstrip("=^@")
    before, _, _ = path.rpartition("__")
    try:
        field = _field(model, path)
    except FieldDoesNotExist:
        # Some packages look for `username`, which our users do not have.
        return None
    term_id = _id(term)
    if isinstance(field, UUIDField):
        return None if term_id is None else Q(**{path: term_id})
    if before and isinstance(field, EmailField) and field.model is User:
        return _as_owner(before, term)
    if term_id is not None and lookup != "exact":
        # An id is no beginning of anything: beside that, the index of ids would be of no use.
        return None
    try:
        field.to_python(term)
    except ValidationError:
        return None
    return _beginning(path, term) if lookup == "startswith" else Q(**{f"{path}__{lookup}": term})


def _field(model: type[Model], path: str) -> "Field[Any, Any]":
    *relations, last = path.split("__")
    if relations:
        relation: Any = get_fields_from_path(model, "__".join(relations))[-1]
        model = relation.related_model
    found: Any = model._meta.pk if last == "pk" else model._meta.get_field(last)
    field: Field[Any, Any] = found.target_field if found.is_relation else found
    return field


def _id(term: str) -> UUID | None:
    try:
        return UUID(term)
    except ValueError:
        return None


def _beginning(path: str, term: str) -> Q:
    """Postgres has an index for LIKE; SQLite, whose LIKE knows no case, would read every row: 0.4 s for a million."""
    if connection.vendor == "sqlite":
        return Q(**{f"{path}__gte": term, f"{path}__lt": term + LAST_CHARACTER})
    return Q(**{f"{path}__startswith": term})


def _as_owner(relation: str, term: str) -> Q | None:
    if "@" not in term:
        return None
    # Not a join: the planner would be free to begin with the million rows.
    user_id = User.objects.filter(email=User.objects.normalize_email(term)).values_list("pk", flat=True).first()
    return Q(pk__in=[]) if user_id is None else Q(**{relation: user_id})
