"""Which pools a user may send to: those of everybody, and those of the user's plan."""

from datetime import datetime
from uuid import UUID

from billing import api as billing
from inference import api as inference
from inference.contracts import PoolInfo


def offered(*, owner_id: UUID, now: datetime) -> list[PoolInfo]:
    """The default one first."""
    return inference.pools_for(plan=billing.limits_for(user_id=owner_id, now=now).plan)


def chosen(*, owner_id: UUID, slug: str | None, now: datetime) -> PoolInfo:
    """The one of this name; the default one without a name. Raises inference's PoolNotFound."""
    return inference.pool_for(plan=billing.limits_for(user_id=owner_id, now=now).plan, slug=slug)
