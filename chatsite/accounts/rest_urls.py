"""Routes below /api/v1/ that accounts answer."""

from django.urls import path

from chatsite.accounts import rest

urlpatterns = [path("me", rest.MeView.as_view(), name="me")]
