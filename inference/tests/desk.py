"""One user's admissions by the scripts themselves, for tests against a real server."""

from typing import Any
from uuid import UUID, uuid4

from inference.cell import admission, workers
from inference.cell.admission import Admitted, Bounds, LiveReservation, Verdict
from inference.cell.link import Cell
from inference.cell.policy import Policy
from inference.cell.workers import Report
from inference.tests.support import everything, look

NOW = 1_750_000_000_000
REPORT = Report(engine="scripted", model="m", slots=4, running=0, waiting=0, kv_usage=0.0, output_tokens=0, room=4)


class Desk:
    """One user's admissions in the pool "p", where a worker lives."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.user = uuid4()
        self.beat()

    def beat(self, *, at: int = NOW) -> None:
        self.cell.call(workers.heartbeat(self.cell.keys, pool="p", boot_id="w", report=REPORT, held=(), now_ms=at))

    def open_account(
        self,
        *,
        generation: int = 1,
        used: int = 0,
        debt: float = 0,
        debt_at_ms: int = NOW,
        refill_per_hour: int | None = None,
        live: list[LiveReservation] | None = None,
        messages: dict[UUID, int] | None = None,
    ) -> int:
        call = admission.load(
            self.cell.keys,
            user_id=self.user,
            generation=generation,
            used=used,
            debt=debt,
            debt_at_ms=debt_at_ms,
            refill_per_hour=refill_per_hour,
            live=live or [],
            messages=messages or {},
            now_ms=NOW,
        )
        loaded: int = self.cell.call(call)
        return loaded

    def admit(
        self,
        turn: str,
        *,
        base_epoch: int = 1,
        admission_id: UUID | None = None,
        min_generation: int = 0,
        prompt: int = 40,
        output: int = 60,
        floor: int = 10,
        concurrent_runs: int = 2,
        messages: int | None = None,
        budget: int | None = None,
        refill: int | None = None,
        now_ms: int = NOW,
    ) -> Verdict:
        call = admission.admit(
            self.cell.keys,
            user_id=self.user,
            pool="p",
            turn=turn,
            base_epoch=base_epoch,
            admission_id=admission_id or uuid4(),
            min_generation=min_generation,
            prompt_tokens=prompt,
            output_tokens=output,
            output_floor=floor,
            bounds=Bounds(
                concurrent_runs=concurrent_runs, messages=messages, budget_tokens=budget, refill_per_hour=refill
            ),
            tier="free",
            policy=Policy(),
            now_ms=now_ms,
        )
        return admission.read_verdict(self.cell.call(call))

    def admitted(self, turn: str, **more: Any) -> UUID:
        verdict = self.admit(turn, **more)
        assert isinstance(verdict, Admitted), verdict
        return verdict.admission_id

    def settle(self, admission_id: UUID, *, tokens: int, now_ms: int = NOW) -> int:
        call = admission.settle(
            self.cell.keys, user_id=self.user, admission_id=admission_id, tokens=tokens, now_ms=now_ms
        )
        settled: int = self.cell.call(call)
        return settled

    def release(self, admission_id: UUID) -> int:
        call = admission.release(self.cell.keys, user_id=self.user, pool="p", admission_id=admission_id)
        released: int = self.cell.call(call)
        return released

    @property
    def held(self) -> dict[str, str]:
        rows: dict[str, str] = look(self.cell, lambda client: client.hgetall(self.cell.keys.reservations(self.user)))
        return rows

    @property
    def account(self) -> dict[str, str]:
        row: dict[str, str] = look(self.cell, lambda client: client.hgetall(self.cell.keys.account(self.user)))
        return row

    @property
    def is_holder(self) -> bool:
        return bool(look(self.cell, lambda client: client.sismember(self.cell.keys.holders(), str(self.user))))

    @property
    def messages(self) -> dict[str, int]:
        rows: list[tuple[str, float]] = look(
            self.cell, lambda client: client.zrange(self.cell.keys.messages(self.user), 0, -1, withscores=True)
        )
        return {name: int(at) for name, at in rows}

    def everything(self) -> dict[bytes, Any]:
        return everything(self.cell)
