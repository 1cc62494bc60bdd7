"""The site's banner and the maintenance that it may announce, as administrators set them.

Every process reads them at most once a second, so that a send costs no query more and a change holds everywhere
within two seconds.
"""

import math
import time
from datetime import datetime
from threading import Lock

import structlog
from django.db import Error, transaction

from conversations import limits
from conversations.contracts import Banner
from conversations.errors import InvalidRequest, Maintenance
from conversations.models import SiteBanner

log = structlog.get_logger(__name__)

# Seconds for which a process believes what it read.
FRESH_S = 1.0
# Seconds that a refused client is told to wait when nobody said when the maintenance is over.
PAUSE_S = 60
NO_WORDS = "The site is being maintained. No messages can be sent at the moment."


class _Known:
    """What this process read last."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._banner: Banner | None = None
        self._stale_at = -math.inf

    def look(self) -> Banner | None:
        """The banner, not older than `FRESH_S` unless the database is away: then what was known before."""
        if time.monotonic() >= self._stale_at:
            # One thread reads; the others wait for it, which takes less than a millisecond.
            with self._lock:
                if time.monotonic() >= self._stale_at:
                    self._read()
        return self._banner

    def forget(self) -> None:
        self._stale_at = -math.inf

    def _read(self) -> None:
        try:
            self._banner = _stored()
        except Error as error:
            # Pages that need no database still open, and before the first migration there is no such table.
            log.warning("banner_unknown", error=str(error))
        self._stale_at = time.monotonic() + FRESH_S


_known = _Known()


def current() -> Banner | None:
    """What the pages show; None when there is nothing to say."""
    return _known.look()


def forget() -> None:
    """Read anew at the next look."""
    _known.forget()


def refuse_during_maintenance(*, now: datetime) -> None:
    """Raise Maintenance while the site is being maintained; to be asked before anything new begins."""
    banner = current()
    if banner is None or not banner.maintenance:
        return
    left = 0.0 if banner.until is None else (banner.until - now).total_seconds()
    # It lasts until somebody ends it, so that a time that has passed promises nothing.
    raise Maintenance(text=banner.text, until=banner.until, retry_after=math.ceil(left) if left > 0 else PAUSE_S)


def change(*, text: str, severity: str, maintenance: bool, until: datetime | None, now: datetime) -> None:
    """Replace all of it. `until`: when a maintenance is expected to be over. Raises InvalidRequest."""
    check(text=text, maintenance=maintenance, until=until, now=now)
    values = {"text": text.strip(), "severity": severity, "maintenance": maintenance, "until": until}
    SiteBanner.objects.update_or_create(pk=1, defaults=values)
    transaction.on_commit(forget)


def check(*, text: str, maintenance: bool, until: datetime | None, now: datetime) -> None:
    """Raise InvalidRequest for what `change` refuses."""
    limits.check_text(text, field="text", most=limits.MAX_BANNER_CHARACTERS, blank_allowed=True)
    if maintenance and until is not None and until <= now:
        raise InvalidRequest(field="until", reason="has passed already")


def begin_maintenance(*, text: str | None, until: datetime | None, now: datetime) -> None:
    """Refuse sends from now on; without a text the banner's present one stays. Raises InvalidRequest."""
    row = _row()
    change(text=row.text if text is None else text, severity=row.severity, maintenance=True, until=until, now=now)


def end_maintenance(*, text: str | None, now: datetime) -> None:
    """Take sends again. The banner then says `text`, or goes: what announced a maintenance must not outlive it.

    Raises InvalidRequest.
    """
    change(text=text or "", severity=SiteBanner.Severity.INFO, maintenance=False, until=None, now=now)


def _row() -> SiteBanner:
    return SiteBanner.objects.filter(pk=1).first() or SiteBanner()


def _stored() -> Banner | None:
    row = _row()
    if not row.text and not row.maintenance:
        return None
    return Banner(
        text=row.text or NO_WORDS,
        severity=SiteBanner.Severity.WARNING.value if row.maintenance else row.severity,
        maintenance=row.maintenance,
        until=row.until if row.maintenance else None,
    )
