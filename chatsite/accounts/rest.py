"""`/api/v1/me`: the account that the credentials stand for."""

from typing import Any

from allauth.account.models import EmailAddress
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from billing import api as billing
from chatsite.accounts.models import User
from chatsite.accounts.rest_limits import LimitsSerializer, StandingsSerializer, limits_of, standing_of


class MeSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    email = serializers.EmailField()
    email_verified = serializers.BooleanField()
    name = serializers.CharField()
    is_administrator = serializers.BooleanField()
    plan = serializers.CharField(help_text="Its slug.")
    plan_name = serializers.CharField()
    limits = LimitsSerializer()
    standing = StandingsSerializer(help_text="By the names under which a refusal states its `limit`.")
    created_at = serializers.DateTimeField()


class MeView(APIView):
    @extend_schema(operation_id="me_retrieve", responses=MeSerializer)
    def get(self, request: Request) -> Response:
        """Your account."""
        user = request.user
        assert isinstance(user, User), "the permissions let nobody else through"
        now = timezone.now()
        plan = billing.plan_for(user_id=user.pk, now=now)
        return Response(
            MeSerializer(
                {
                    "id": user.pk,
                    "email": user.email,
                    "email_verified": EmailAddress.objects.filter(user=user, email=user.email, verified=True).exists(),
                    "name": user.name,
                    "is_administrator": user.is_superuser,
                    "plan": plan.slug,
                    "plan_name": plan.name,
                    "limits": limits_of(plan),
                    "standing": standing_of(request, user_id=user.pk, now=now),
                    "created_at": user.date_joined,
                }
            ).data
        )
