"""`/api/v1/usage`: what an account may use, where it stands, and what it has used."""

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from billing import api as billing
from billing.contracts import Used
from chatsite.accounts.rest_limits import LimitsSerializer, StandingsSerializer, limits_of, standing_of
from chatsite.days import start_of_day

DEFAULT_DAYS = 30
MAX_DAYS = 90


class TokensSerializer(serializers.Serializer[Any]):
    prompt = serializers.IntegerField(help_text="Includes `cached`.")
    cached = serializers.IntegerField()
    output = serializers.IntegerField()
    wasted = serializers.IntegerField(help_text="Computed in vain; counts against nobody.")


class _UsedSerializer(serializers.Serializer[Any]):
    runs = serializers.IntegerField(help_text="Runs that ended in this time.")
    tokens = TokensSerializer()
    cost = serializers.IntegerField(help_text="In millionths of `currency`, at the prices of each settlement.")


class PeriodSerializer(_UsedSerializer):
    since = serializers.DateTimeField()


class DaySerializer(_UsedSerializer):
    date = serializers.DateField(help_text="A day of UTC.")
    pool = serializers.CharField()


class AccountUsageSerializer(serializers.Serializer[Any]):
    plan = serializers.CharField(help_text="Its slug.")
    plan_name = serializers.CharField()
    limits = LimitsSerializer()
    standing = StandingsSerializer(help_text="By the names under which a refusal states its `limit`.")
    today = PeriodSerializer()
    last_30_days = PeriodSerializer()
    currency = serializers.CharField(help_text="ISO 4217.")


class DailyUsageSerializer(serializers.Serializer[Any]):
    since = serializers.DateTimeField()
    currency = serializers.CharField(help_text="ISO 4217.")
    results = DaySerializer(many=True)
    next = serializers.URLField(allow_null=True)
    previous = serializers.URLField(allow_null=True)


class UsageView(APIView):
    @extend_schema(operation_id="usage_retrieve", responses=AccountUsageSerializer)
    def get(self, request: Request) -> Response:
        """Your plan's limits, where you stand, and what you have used. Days are those of UTC."""
        user_id, now = _user_id(request), timezone.now()
        plan = billing.plan_for(user_id=user_id, now=now)
        starts = [_midnight(now), _midnight(now, days_before=29)]
        today, month = billing.usage_since(user_id=user_id, starts=starts)
        body = {
            "plan": plan.slug,
            "plan_name": plan.name,
            "limits": limits_of(plan),
            "standing": standing_of(request, user_id=user_id, now=now),
            "today": {"since": starts[0], **_used(today)},
            "last_30_days": {"since": starts[1], **_used(month)},
            "currency": settings.CURRENCY,
        }
        return Response(AccountUsageSerializer(body).data)


class DailyUsageView(APIView):
    @extend_schema(
        operation_id="usage_daily",
        parameters=[
            OpenApiParameter(
                "days",
                {"type": "integer", "minimum": 1, "maximum": MAX_DAYS, "default": DEFAULT_DAYS},
                description="Today included.",
            )
        ],
        responses=DailyUsageSerializer,
    )
    def get(self, request: Request) -> Response:
        """What you have used by day and pool until now, the newest day first; no entry where nothing was used."""
        since = _midnight(timezone.now(), days_before=_days(request) - 1)
        days = billing.daily_usage(user_id=_user_id(request), since=since.date())
        results = [{"date": day.day, "pool": day.pool, **_used(day.used)} for day in days]
        # At most 90 days of few pools: one page holds them all.
        body = {"since": since, "currency": settings.CURRENCY, "results": results, "next": None, "previous": None}
        return Response(DailyUsageSerializer(body).data)


def _user_id(request: Request) -> UUID:
    user_id: UUID | None = request.user.pk
    assert user_id is not None, "the permissions let nobody else through"
    return user_id


def _days(request: Request) -> int:
    text = request.query_params.get("days", str(DEFAULT_DAYS))
    if not (text.isascii() and text.isdigit() and len(text) <= 2 and 1 <= int(text) <= MAX_DAYS):
        raise ValidationError({"days": [f"must be a whole number from 1 to {MAX_DAYS}"]})
    return int(text)


def _midnight(now: datetime, *, days_before: int = 0) -> datetime:
    return start_of_day(now) - timedelta(days=days_before)


def _used(used: Used) -> dict[str, Any]:
    sums = asdict(used)
    return {"runs": sums.pop("runs"), "cost": sums.pop("cost"), "tokens": sums}
