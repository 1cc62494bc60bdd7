"""The Celery application that web publishes to and that worker, jobs and beat run."""

import os
from typing import Any

from celery import Celery
from celery.signals import setup_logging

from chatsite import env

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatsite.settings.local")


def _broker() -> dict[str, str]:
    """Name the broker when the configuration is first used: an embedded Redis is not up at import."""
    return {"broker_url": env.redis_url()}


def _keep_django_logging(**_kwargs: Any) -> None:
    """A connected receiver is what stops Celery from replacing the handlers that Django configured."""


app = Celery("chatsite")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.add_defaults(_broker)
app.autodiscover_tasks()
setup_logging.connect(_keep_django_logging)
