"""When a day begins: at midnight UTC, wherever the site shows what was used in one."""

from datetime import UTC, datetime


def start_of_day(now: datetime) -> datetime:
    """Midnight before `now`."""
    return now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
