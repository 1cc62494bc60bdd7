"""Start-up of the composition root: what must hold before any other app is loaded."""

from django.apps import AppConfig
from django.contrib.admin.options import BaseModelAdmin
from django.core.paginator import Paginator
from django.forms.models import BaseModelForm

from chatsite import logs

# The type checker wants `ModelAdmin[Chat]`; at run time Django makes managers and querysets subscriptable,
# admin classes, model forms and paginators not yet.
for generic in (BaseModelAdmin, BaseModelForm, Paginator):
    setattr(generic, "__class_getitem__", classmethod(lambda cls, _model: cls))  # noqa: B010


class ChatsiteConfig(AppConfig):
    name = "chatsite"

    def ready(self) -> None:
        logs.configure_structlog()
