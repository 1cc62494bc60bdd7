"""This process's connections to the cell's Redis, made when they are first needed."""

import time
from functools import cache

from django.conf import settings

from inference.cell.link import AsyncConnector, Connector


@cache
def connector() -> Connector:
    """The connector that all threads of this process share."""
    return Connector(url=settings.REDIS_URL_SOURCE)


def async_connector() -> AsyncConnector:
    """A connector for the running event loop; the caller owns it."""
    return AsyncConnector(url=settings.REDIS_URL_SOURCE)


def now_ms() -> int:
    """Wall-clock time as the scripts take it, in ms."""
    return time.time_ns() // 1_000_000
