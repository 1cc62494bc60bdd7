"""One user's admissions over a real Redis and database."""

from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from billing import api as billing
from billing.contracts import Charge
from inference import admission, store
from inference.cell import workers
from inference.cell.workers import Report
from inference.contracts import Admission
from inference.models import ModelPool
from inference.tests.support import look

REPORT = Report(engine="scripted", model="m", slots=4, running=0, waiting=0, kv_usage=0.0, output_tokens=0, room=4)


class Gate:
    """Admissions of one user's turns to the default pool, where a worker lives."""

    def __init__(self, *, user_id: UUID, pool: ModelPool, now: datetime) -> None:
        self.user_id = user_id
        self.pool = pool
        self.now = now
        self.beat()

    def beat(self) -> None:
        cell = store.connector().cell()
        now_ms = int(self.now.timestamp() * 1000)
        cell.call(workers.heartbeat(cell.keys, pool=self.pool.slug, boot_id="w", report=REPORT, held=(), now_ms=now_ms))

    def admit(
        self, turn: str = "t1", *, prompt: int = 40, output: int = 60, min_generation: int = 0, **limits: Any
    ) -> Admission:
        return admission.admit(
            user_id=self.user_id,
            pool=self.pool,
            turn=turn,
            base_epoch=1,
            prompt_tokens=prompt,
            max_output_tokens=output,
            limits=replace(billing.limits_for(user_id=self.user_id, now=self.now), **limits),
            min_generation=min_generation,
            now=self.now,
        )

    @property
    def account(self) -> dict[str, str]:
        cell = store.connector().cell()
        row: dict[str, str] = look(cell, lambda client: client.hgetall(cell.keys.account(self.user_id)))
        return row

    @property
    def held(self) -> dict[str, str]:
        cell = store.connector().cell()
        rows: dict[str, str] = look(cell, lambda client: client.hgetall(cell.keys.reservations(self.user_id)))
        return rows

    @property
    def messages(self) -> dict[str, int]:
        """Admission id → when it was admitted (ms)."""
        cell = store.connector().cell()
        rows: list[tuple[str, float]] = look(
            cell, lambda client: client.zrange(cell.keys.messages(self.user_id), 0, -1, withscores=True)
        )
        return {name: int(at) for name, at in rows}

    def charge(
        self,
        *,
        admission_id: UUID,
        tokens: int,
        run_id: UUID | None = None,
        epoch: int = 1,
        reason: str = "completed",
        at: datetime | None = None,
    ) -> None:
        billing.record(
            Charge(
                user_id=self.user_id,
                run_id=run_id or uuid4(),
                epoch=epoch,
                admission_id=admission_id,
                pool=self.pool.slug,
                reason=reason,
                prompt_tokens=0,
                cached_tokens=0,
                output_tokens=tokens,
                wasted_tokens=0,
                at=at or self.now,
            )
        )
