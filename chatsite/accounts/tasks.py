"""Celery tasks of accounts."""

from dataclasses import asdict

import structlog
from celery import shared_task
from django.utils import timezone

from chatsite.accounts import tidying

log = structlog.get_logger(__name__)


@shared_task(name="chatsite.accounts.tasks.tidy", ignore_result=True)
def tidy() -> None:
    """Remove what is over; beat asks for it once a day."""
    log.info("accounts_tidied", **asdict(tidying.tidy(now=timezone.now())))
