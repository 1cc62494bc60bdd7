"""The composition root: settings, URLs, ASGI and Celery applications, health, accounts."""

from chatsite.celery import app as celery_app

__all__ = ["celery_app"]
