"""Addresses of the chat pages."""

from django.urls import path

from conversations import pages

app_name = "pages"

urlpatterns = [
    path("", pages.new_chat, name="new_chat"),
    path("c/<uuid:chat_id>/", pages.chat, name="chat"),
]
