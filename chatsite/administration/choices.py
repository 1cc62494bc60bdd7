"""Rows that a form chooses by key: a key that cannot be any row's is refused like one that is none's.

Django asks the database for it, and the database has no such number, or no such text.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from django.contrib.admin.widgets import AutocompleteSelect
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.forms import ModelMultipleChoiceField


def can_be_key(model: type[Model], value: Any) -> bool:
    """Whether a row of the model could have this primary key."""
    field = model._meta.pk
    try:
        field.run_validators(field.to_python(value))
    except ValidationError:
        return False
    return "\0" not in str(value)


class Rows(ModelMultipleChoiceField):  # type: ignore[type-arg]  # generic for the stubs alone
    """Any number of rows."""

    def _check_values(self, value: Iterable[Any]) -> Any:
        assert self.queryset is not None
        keys = list(value)
        for key in keys:
            if not can_be_key(self.queryset.model, key):
                raise ValidationError(
                    self.error_messages["invalid_pk_value"], code="invalid_pk_value", params={"pk": key}
                )
        return super()._check_values(keys)  # type: ignore[misc]  # the stubs leave it out


class Autocomplete(AutocompleteSelect):
    """Shows a form again with what was chosen in it, unless that can be nothing."""

    def optgroups(self, name: str, value: Sequence[str], attr: Any = None) -> Any:
        model = self.field.remote_field.model
        return super().optgroups(name, [key for key in value if not key or can_be_key(model, key)], attr)
