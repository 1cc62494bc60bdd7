"""The real scripts as a simulation's scheduler: called in the order and with the arguments of the product."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from inference.cell import admission, queue, workers
from inference.cell.keys import Keys
from inference.cell.link import Argument, Cell, Reply, ScriptCall
from inference.cell.policy import Policy
from inference.cell.queue import Later, Served, Ticketed, Waiting
from inference.simulation.engines import Engine
from inference.simulation.scheduler import AskAgain, Offered
from inference.simulation.turns import Turn

POOL = "simulated"
# The users' own limits are not what is looked at here.
_BOUNDS = admission.Bounds(concurrent_runs=100_000)


class Scripts:
    """One pool in one cell of a private server."""

    def __init__(self, *, cell: Cell, policy: Policy, tag: str = "c0") -> None:
        # One connection of its own: a client's bookkeeping around each command takes longer than the server's work.
        self._connection = cell.client.connection_pool.get_connection()
        self._keys = Keys(cell.keys.incarnation, tag)
        self._policy = policy
        self._known: set[UUID] = set()
        self._waiting: dict[UUID, Turn] = {}
        self._computed: Counter[int] = Counter()

    def cost_us(self) -> float:
        """µs that the server took for scripts since it started."""
        (stats,) = self._calls([["INFO", "commandstats"]])
        found = re.search(r"cmdstat_fcall:calls=\d+,usec=(\d+)", stats)
        return float(found[1]) if found else 0.0

    def join(self, engines: Sequence[Engine], *, now: int) -> None:
        for engine in engines:
            self.beat(engine, now=now)

    def beat(self, engine: Engine, *, now: int) -> None:
        report = workers.Report(
            engine="simulated",
            model="simulated",
            slots=engine.machine.slots,
            running=len(engine.running),
            waiting=0,
            kv_usage=0.0,
            output_tokens=0,
            room=engine.free_slots,
            kv_tokens=engine.machine.kv_tokens,
            computed_tokens=self._computed[engine.number],
        )
        held = [f"{run_id}:1" for run_id in engine.running]
        self._call(
            workers.heartbeat(
                self._keys, pool=POOL, boot_id=_boot(engine), report=report, held=held, now_ms=_epoch(now)
            )
        )

    def offer(self, turn: Turn, *, now: int) -> Offered:
        if turn.user_id not in self._known:
            self._load(turn.user_id, now=now)
        verdict = admission.read_verdict(
            self._call(
                admission.admit(
                    self._keys,
                    user_id=turn.user_id,
                    pool=POOL,
                    turn=str(turn.run_id),
                    base_epoch=1,
                    admission_id=turn.run_id,
                    min_generation=0,
                    prompt_tokens=turn.prompt,
                    output_tokens=turn.max_output,
                    output_floor=1,
                    bounds=_BOUNDS,
                    tier=turn.tier,
                    policy=self._policy,
                    now_ms=_epoch(now),
                )
            )
        )
        if isinstance(verdict, admission.Full):
            return Offered(taken=False)
        if not isinstance(verdict, admission.Admitted):
            raise TypeError(f"a simulated user has no limits, yet: {verdict!r}")
        placed = queue.read_enqueue(
            self._call(
                queue.enqueue(
                    self._keys,
                    pool=POOL,
                    policy=self._policy,
                    waiting=Waiting(
                        run=Ticketed(run_id=turn.run_id, epoch=1),
                        base_epoch=1,
                        admission_id=turn.run_id,
                        user_id=turn.user_id,
                        tier=turn.tier,
                        chat_id=turn.chat.chat_id,
                        prompt_tokens=turn.prompt,
                        max_output_tokens=turn.max_output,
                        since_ms=_epoch(now),
                    ),
                    now_ms=_epoch(now),
                )
            )
        )
        self._waiting[turn.run_id] = turn
        return Offered(
            taken=True, wait_ms=round(1000 * placed.wait_s), wake=int(placed.boot_id[1:]) if placed.boot_id else None
        )

    def claim(self, engine: Engine, *, woken: bool, now: int) -> Turn | AskAgain | None:
        found = queue.read_claim(
            self._call(
                queue.claim(
                    self._keys,
                    pool=POOL,
                    boot_id=_boot(engine),
                    room_tokens=engine.free_kv,
                    now_ms=_epoch(now),
                    expected=woken,
                )
            )
        )
        if isinstance(found, Later):
            return AskAgain(found.ms)
        return None if found is None else self._waiting.pop(found.run_id)

    def finish(self, turn: Turn, *, now: int) -> None:
        assert turn.claimed is not None
        keys = self._keys
        run = Ticketed(run_id=turn.run_id, epoch=1)
        assert turn.worker is not None
        self._computed[turn.worker] += turn.uncached + turn.output
        served = Served(
            computed_tokens=turn.uncached,
            cached_tokens=turn.cached,
            output_tokens=turn.output,
            held_ms=now - turn.claimed,
            first_token_ms=round(turn.first_token - turn.claimed),
            worker_tokens=self._computed[turn.worker],
        )
        owner, finished, *_ = self._calls(
            [
                ["HGET", keys.lease_owners(POOL), str(run)],
                queue.finish(
                    keys,
                    pool=POOL,
                    run=run,
                    boot_id=f"w{turn.worker}",
                    chat_id=turn.chat.chat_id,
                    served=served,
                ).command,
                *self._gone(turn, tokens=turn.prompt + turn.output, now=now),
            ]
        )
        if not finished:
            raise RuntimeError(f"the queue does not know who holds run {run}")
        prompt, output = map(float, owner.split("|")[-2:])
        turn.charged = round(self._policy.prompt_weight * prompt + self._policy.output_weight * output)

    def expire(self, turn: Turn, *, now: int) -> bool:
        call = queue.expire(
            self._keys, pool=POOL, run=Ticketed(run_id=turn.run_id, epoch=1), user_id=turn.user_id, tier=turn.tier
        )
        if not self._call(call):
            return False
        del self._waiting[turn.run_id]
        self._calls(self._gone(turn, tokens=0, now=now))
        return True

    def _gone(self, turn: Turn, *, tokens: int, now: int) -> list[list[Argument]]:
        """Settle a turn and forget its stream: nobody follows, and its five minutes would be hours here."""
        keys = self._keys
        settle = admission.settle(
            keys, user_id=turn.user_id, admission_id=turn.run_id, tokens=tokens, now_ms=_epoch(now)
        )
        return [
            settle.command,
            ["UNLINK", keys.stream(turn.run_id), keys.stream_state(turn.run_id), keys.messages(turn.user_id)],
            ["SREM", keys.open_streams(), str(turn.run_id)],
        ]

    def _load(self, user_id: UUID, *, now: int) -> None:
        self._known.add(user_id)
        self._call(
            admission.load(
                self._keys,
                user_id=user_id,
                generation=1,
                used=0,
                debt=0.0,
                debt_at_ms=_epoch(now),
                refill_per_hour=None,
                live=(),
                messages={},
                now_ms=_epoch(now),
            )
        )

    def _call(self, call: ScriptCall) -> Reply:
        return self._calls([call.command])[0]

    def _calls(self, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
        """The replies to several commands, sent together."""
        connection: Any = self._connection  # whose methods have no types
        connection.send_packed_command(connection.pack_commands(commands))
        return [connection.read_response() for _ in commands]


def _boot(engine: Engine) -> str:
    return f"w{engine.number}"


def _epoch(now: int) -> int:
    """The scripts' clock: a time of today, as they see it in life."""
    return 1_800_000_000_000 + now
