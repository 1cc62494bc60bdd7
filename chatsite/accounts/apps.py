"""Registration of the accounts app."""

from importlib import import_module
from typing import Any

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "chatsite.accounts"
    label = "accounts"

    def ready(self) -> None:
        # The schema generator knows an extension once its module is loaded.
        import_module("chatsite.accounts.schema")
        closing: Any = import_module("chatsite.accounts.closing")
        closing.connect()
