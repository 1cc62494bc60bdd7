"""Start-up of the composition root."""

from django.apps import AppConfig

from chatsite import logs


class ChatsiteConfig(AppConfig):
    name = "chatsite"

    def ready(self) -> None:
        logs.configure_structlog()
