"""The worker's heartbeat, on a thread of its own: no pause of the event loop makes a living worker look dead.

It tells that the worker lives only while the loop does, renews the leases of what the worker holds, and hears whose
leases have lapsed.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from inference.cell import workers
from inference.cell.errors import StoreUnavailable
from inference.cell.link import Connector
from inference.cell.sight import Sight
from inference.worker.watch import Watch

log = structlog.get_logger(__name__)

# A Redis that takes longer is as good as away: a beat that hung for the length of a lease would lose all of them.
TIMEOUT_S = 0.5
# A loop that has not turned for so long publishes nothing either. Its longest pause measured: docs/engine.md.
LOOP_BOUND_S = 5.0


@dataclass(frozen=True, slots=True)
class Pulse:
    """What the loop last told: how often it has turned, and its report (None: the worker takes no more runs)."""

    turns: int
    report: workers.Report | None


class Heart:
    """Beats from `start` to `stop`.

    `pulse` and `held` must not block. `on_lapsed` is told the names ('run:epoch') of leases that their workers let
    lapse although Redis was there for all of a lease's time; `on_hung` is told, once, that the loop does not turn any
    more: from then on nothing is renewed.
    """

    def __init__(
        self,
        *,
        pool: str,
        boot_id: str,
        redis_url: Callable[[], str],
        pulse: Callable[[], Pulse],
        held: Callable[[], Sequence[str]],
        on_lapsed: Callable[[Sequence[str]], None],
        on_hung: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._boot_id = boot_id
        self._connector = Connector(url=redis_url, timeout_s=TIMEOUT_S)
        self._pulse = pulse
        self._held = held
        self._on_lapsed = on_lapsed
        self._on_hung = on_hung
        self._news = threading.Event()
        self._stopping = False
        self._loop_watch = Watch(bound_s=LOOP_BOUND_S)
        self._sight = Sight()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def beat_soon(self) -> None:
        """Do not wait for the interval: there is something to tell."""
        self._news.set()

    def stop(self) -> None:
        """Beat no more; returns when the last beat is over."""
        self._stopping = True
        self._news.set()
        self._thread.join()
        self._connector.close()

    def _run(self) -> None:
        while not self._stopping:
            self._news.clear()
            try:
                self._beat()
            except StoreUnavailable:
                self._sight.lose()
            except Exception:
                # A worker that stopped beating in silence would be worse than whatever this is.
                log.exception("heartbeat_failed")
            self._news.wait(workers.HEARTBEAT_MS / 1000)

    def _beat(self) -> None:
        pulse = self._pulse()
        if self._loop_watch.stands_still(at=pulse.turns, now=time.monotonic()):
            if self._loop_watch.is_news:
                log.critical("loop_hung", pool=self._pool, seconds=LOOP_BOUND_S)
                self._on_hung()
            return
        cell = self._connector.cell()
        lost, lapsed = cell.call(
            workers.heartbeat(
                cell.keys,
                pool=self._pool,
                boot_id=self._boot_id,
                report=pulse.report,
                held=self._held(),
                now_ms=time.time_ns() // 1_000_000,
            )
        )
        is_clear = self._sight.is_clear(incarnation=cell.keys.incarnation, now=time.monotonic(), wall=time.time())
        if lost:
            # Their streams refuse this worker as well, which is what ends them here.
            log.warning("leases_lost", runs=lost)
        if is_clear and lapsed:
            self._on_lapsed(lapsed)
