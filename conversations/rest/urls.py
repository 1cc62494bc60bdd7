"""Routes below /api/v1/."""

from django.urls import path

from conversations.rest import views

urlpatterns = [
    path("chats", views.ChatsView.as_view(), name="chats"),
    path("chats/<uuid:chat_id>", views.ChatView.as_view(), name="chat"),
    path("chats/<uuid:chat_id>/messages", views.MessagesView.as_view(), name="messages"),
    path("chats/<uuid:chat_id>/runs/<uuid:run_id>/cancel", views.CancelView.as_view(), name="chat-run-cancel"),
    path("runs/<uuid:run_id>", views.RunView.as_view(), name="run"),
    path("runs/<uuid:run_id>/events", views.EventsView.as_view(), name="run-events"),
    path("runs/<uuid:run_id>/cancel", views.CancelView.as_view(), name="run-cancel"),
    path("runs/<uuid:run_id>/retry", views.RetryView.as_view(), name="run-retry"),
    path("status", views.StatusView.as_view(), name="status"),
    path("pools", views.PoolsView.as_view(), name="pools"),
]
