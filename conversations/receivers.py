"""What conversations does when other apps signal."""

from typing import Any

from conversations import background, chats
from conversations.models import Job
from inference.contracts import SettledRun
from inference.signals import run_settled


def connect() -> None:
    run_settled.connect(_on_run_settled, dispatch_uid="conversations.store_answer")


def _on_run_settled(*, settled: SettledRun, **_: Any) -> None:
    if settled.kind in Job.Kind.values:
        background.settle(settled)
    else:
        chats.store_answer(settled)
