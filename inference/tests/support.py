"""What inference's tests share: looks at a Redis server from outside, and the ways in which it goes away."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import redis
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from inference.cell import admission
from inference.cell.keys import Keys
from inference.cell.link import Cell, ScriptCall
from tests.services import Valkey


def ask(valkey: Valkey, question: Callable[[Any], Any]) -> Any:
    """What a client of its own gets from the server."""
    with redis.Redis(port=valkey.port, decode_responses=True) as client:
        return question(client)


def look(cell: Cell, question: Callable[[Any], Any]) -> Any:
    """What the cell's client gets; the client's own types say too little to be used."""
    return cell.run(question)


def stream_state(cell: Cell, name: str) -> dict[str, str]:
    """What is kept of a stream under this name, without what there is nothing of yet."""
    kept: str = look(cell, lambda client: client.get(name)) or ""
    fields = zip(("epoch", "mode", "last", "first"), kept.split("|"), strict=False)
    return {field: value for field, value in fields if value}


def connections(valkey: Valkey) -> int:
    """How many clients the server has, besides the one that asks."""
    return len(ask(valkey, lambda client: client.client_list())) - 1


def everything(cell: Cell) -> dict[bytes, Any]:
    """All keys of the cell's server with what they hold: two equal ones mean that nothing was changed."""
    with redis.Redis(port=cell.client.connection_pool.connection_kwargs["port"]) as client:
        found: Any = client.keys("*")
        return {key: client.dump(key) for key in found}


def restart(valkey: Valkey) -> None:
    """A crash: another incarnation, which knows nothing."""
    valkey.kill()
    valkey.start()


@contextlib.contextmanager
def hung(valkey: Valkey) -> Iterator[None]:
    """The server accepts connections and answers nothing; afterwards it is the same as before."""
    assert valkey.process is not None
    valkey.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        valkey.process.send_signal(signal.SIGCONT)


def search(machine: type[RuleBasedStateMachine]) -> None:
    """Have Hypothesis try orders of the machine's steps, the same ones each time; raises for one that breaks a rule."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def empty_account(keys: Keys, *, user_id: UUID) -> ScriptCall:
    """Puts in place the account of a user who has used nothing, of the first generation."""
    return admission.load(
        keys,
        user_id=user_id,
        generation=1,
        used=0,
        debt=0,
        debt_at_ms=0,
        refill_per_hour=None,
        live=(),
        messages={},
        now_ms=0,
    )
