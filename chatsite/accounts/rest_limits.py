"""The limits of an account, and where it stands in them, as `/api/v1/me` and `/api/v1/usage` state them."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from rest_framework import serializers
from rest_framework.request import Request

from billing import api as billing
from billing.contracts import PlanInfo
from chatsite.accounts import throttling
from inference import api as inference
from inference.contracts import BudgetStanding, WindowStanding

_AWAY = "Null without such a limit, and while nobody can tell: `limits` says which."


class LimitsSerializer(serializers.Serializer[Any]):
    """What the plan and the site allow; null = no limit of its own: for tokens of an answer, what the pool takes."""

    concurrent_runs = serializers.IntegerField(help_text="Answers under way at a time.")
    max_prompt_tokens = serializers.IntegerField(allow_null=True, help_text="Per answer.")
    max_output_tokens = serializers.IntegerField(allow_null=True, help_text="Per answer.")
    token_budget = serializers.IntegerField(allow_null=True, help_text="Prompt and output together, at once.")
    refill_per_hour = serializers.IntegerField(allow_null=True, help_text="Tokens that come back to the budget.")
    messages_per_hour = serializers.IntegerField(allow_null=True, help_text="Within any 60 minutes.")
    queue_wait_s = serializers.IntegerField(allow_null=True, help_text="A message's longest wait; null: the pool's.")
    history_days = serializers.IntegerField(allow_null=True, help_text="Chats unused for so long are deleted.")
    requests_per_minute = serializers.IntegerField(allow_null=True)


class StandingSerializer(serializers.Serializer[Any]):
    maximum = serializers.IntegerField()
    used = serializers.IntegerField()
    remaining = serializers.IntegerField()
    resets_at = serializers.DateTimeField(allow_null=True, help_text="Null where nothing resets at a set time.")


class BudgetStandingSerializer(StandingSerializer):
    used = serializers.IntegerField(help_text="Charged and not yet refilled, and held for answers under way.")
    resets_at = serializers.DateTimeField(allow_null=True, help_text="When it is full again; null while it is full.")
    refill_per_hour = serializers.IntegerField()


class StandingsSerializer(serializers.Serializer[Any]):
    concurrent_runs = StandingSerializer()
    token_budget = BudgetStandingSerializer(allow_null=True, help_text=_AWAY)
    messages_per_hour = StandingSerializer(
        allow_null=True, help_text=f"{_AWAY} `resets_at`: when the oldest counts no more."
    )
    requests_per_minute = StandingSerializer(allow_null=True, help_text="Null without such a limit.")


def limits_of(plan: PlanInfo) -> dict[str, int | None]:
    return {
        "concurrent_runs": plan.concurrent_runs,
        "max_prompt_tokens": plan.max_prompt_tokens,
        "max_output_tokens": plan.max_output_tokens,
        "token_budget": plan.budget_tokens,
        "refill_per_hour": plan.refill_per_hour,
        "messages_per_hour": plan.messages_per_hour,
        "queue_wait_s": plan.queue_wait_s,
        "history_days": plan.history_days,
        "requests_per_minute": settings.API_REQUESTS_PER_MINUTE or None,
    }


def standing_of(request: Request, *, user_id: UUID, now: datetime) -> dict[str, Any]:
    """Where the account stands, by the names under which a refusal states its `limit`."""
    limits = billing.limits_for(user_id=user_id, now=now)
    quota = inference.quota_standing(user_id=user_id, limits=limits, now=now)
    return {
        "concurrent_runs": _standing(
            maximum=limits.concurrent_runs, used=len(inference.active_runs_of(owner_id=user_id))
        ),
        "token_budget": None if quota is None or quota.budget is None else _budget(quota.budget),
        "messages_per_hour": None if quota is None or quota.messages is None else _messages(quota.messages),
        "requests_per_minute": _requests(request, now=now),
    }


def _standing(*, maximum: int, used: int, resets_at: datetime | None = None) -> dict[str, Any]:
    # A plan may have become smaller than what is under way.
    return {"maximum": maximum, "used": used, "remaining": max(0, maximum - used), "resets_at": resets_at}


def _budget(budget: BudgetStanding) -> dict[str, Any]:
    used = budget.capacity - budget.remaining
    standing = _standing(maximum=budget.capacity, used=used, resets_at=budget.full_at if used else None)
    return standing | {"refill_per_hour": budget.refill_per_hour}


def _messages(messages: WindowStanding) -> dict[str, Any]:
    return _standing(maximum=messages.maximum, used=messages.used, resets_at=messages.resets_at)


def _requests(request: Request, *, now: datetime) -> dict[str, Any] | None:
    standing = throttling.standing_of(request._request)
    if standing is None:
        return None
    resets_at = (now + timedelta(seconds=standing.reset_s)).replace(microsecond=0)
    return _standing(maximum=standing.maximum, used=standing.used, resets_at=resets_at)
