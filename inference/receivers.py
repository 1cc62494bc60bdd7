"""What inference does when other apps signal."""

from datetime import datetime
from typing import Any
from uuid import UUID

import structlog

from billing.signals import account_adjusted
from inference import api
from inference.errors import ServiceUnavailable

log = structlog.get_logger(__name__)


def connect() -> None:
    account_adjusted.connect(_on_account_adjusted, dispatch_uid="inference.rebuild_adjusted")


def _on_account_adjusted(*, user_id: UUID, now: datetime, **_: Any) -> None:
    """Have Redis count what was adjusted. Where it cannot, the user's next message finds its counters out of date."""
    try:
        api.rebuild_quota(user_id=user_id, now=now)
    except ServiceUnavailable as error:
        log.warning("adjusted_without_redis", user_id=str(user_id), error=str(error))
