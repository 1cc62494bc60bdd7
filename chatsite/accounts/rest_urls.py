"""Routes below /api/v1/ that accounts answer."""

from django.urls import path

from chatsite.accounts import rest, rest_usage

urlpatterns = [
    path("me", rest.MeView.as_view(), name="me"),
    path("usage", rest_usage.UsageView.as_view(), name="usage"),
    path("usage/daily", rest_usage.DailyUsageView.as_view(), name="usage-daily"),
]
