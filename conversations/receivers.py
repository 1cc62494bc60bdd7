"""What conversations does when other apps signal."""

from typing import Any

from conversations import chats
from inference.contracts import SettledRun
from inference.signals import run_settled


def connect() -> None:
    run_settled.connect(_on_run_settled, dispatch_uid="conversations.store_answer")


def _on_run_settled(*, settled: SettledRun, **_: Any) -> None:
    chats.store_answer(settled)
