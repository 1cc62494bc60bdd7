"""What a user can take away of inference: runs and their attempts, a page at a time."""

from typing import Any
from uuid import UUID

from inference.models import Attempt, Run

_RUN = (
    "id",
    "kind",
    "chat_id",
    "status",
    "model",
    "epoch",
    "degraded",
    "finish_reason",
    "error_code",
    "message_id",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "max_output_tokens",
    "context",
    "created_at",
    "retried_at",
    "claimed_at",
    "first_token_at",
    "finished_at",
)
_ATTEMPT = ("epoch", "outcome", "output_tokens", "cached_tokens", "text", "started_at", "ended_at")


def page_of(*, user_id: UUID, after: UUID | None, limit: int) -> list[dict[str, Any]]:
    """The user's next runs in the order of their `id`, each with its attempts; what a retry replaced is their text."""
    found = Run.objects.filter(owner_id=user_id)
    if after is not None:
        found = found.filter(id__gt=after)
    runs = [
        {"pool": pool, **dict(zip(_RUN, row, strict=True)), "attempts": []}
        for pool, *row in found.order_by("id").values_list("pool__slug", *_RUN)[:limit]
    ]
    by_id = {run["id"]: run for run in runs}
    attempts = Attempt.objects.filter(run_id__in=by_id).order_by("run_id", "epoch")
    for run_id, *row in attempts.values_list("run_id", *_ATTEMPT):
        by_id[run_id]["attempts"].append(dict(zip(_ATTEMPT, row, strict=True)))
    return runs
