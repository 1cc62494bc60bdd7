"""What the admin site shows of chats, and what it can do to them."""

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse

from conversations.models import Chat, Message
from conversations.tests.support import Person, queued, settle_by_hand
from inference.models import Run

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "My secret is 4711."


@pytest.fixture
def operator(site: None) -> Client:
    user: Any = get_user_model().objects.create_superuser(email="root@example.org", password="p")
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def chat(ada: Person) -> Chat:
    opened = ada.new_chat(title="Plans")
    settle_by_hand(ada.sent(opened, SECRET)["run"]["id"], text=SECRET)
    return Chat.objects.get(id=opened)


def page(operator: Client, model: str, *args: object) -> str:
    name = f"admin:conversations_{model}_{'change' if args else 'changelist'}"
    response = operator.get(reverse(name, args=args))
    assert response.status_code == 200
    return response.content.decode()


def test_lists_and_screens_open_and_never_show_what_was_written(operator: Client, chat: Chat) -> None:
    message = Message.objects.get(chat=chat, role="user")
    pages = [page(operator, model) for model in ("chat", "turn", "message")]
    pages += [
        page(operator, "chat", chat.id),
        page(operator, "turn", message.turn_id),
        page(operator, "message", message.id),
    ]
    assert "Plans" in pages[0]
    assert all(SECRET not in shown for shown in pages)


@pytest.mark.parametrize("looked_for", ["Plans", "ada@example.org"])
def test_a_chat_is_found_by_title_and_owner(operator: Client, chat: Chat, looked_for: str) -> None:
    found = operator.get(reverse("admin:conversations_chat_changelist"), {"q": looked_for}).content.decode()
    assert str(chat.id) in found
    assert (
        str(chat.id) not in operator.get(reverse("admin:conversations_chat_changelist"), {"q": "zzz"}).content.decode()
    )


@pytest.mark.parametrize("model", ["chat", "turn", "message"])
def test_nothing_is_added_or_changed_by_hand(operator: Client, chat: Chat, model: str) -> None:
    assert operator.get(reverse(f"admin:conversations_{model}_add")).status_code == 403
    message = Message.objects.get(chat=chat, role="user")
    pk = {"chat": chat.id, "turn": message.turn_id, "message": message.id}[model]
    assert operator.post(reverse(f"admin:conversations_{model}_change", args=[pk]), {"title": "x"}).status_code == 403


@pytest.mark.parametrize("model", ["turn", "message"])
def test_a_turn_or_message_goes_with_its_chat_and_never_alone(operator: Client, chat: Chat, model: str) -> None:
    message = Message.objects.get(chat=chat, role="user")
    pk = {"turn": message.turn_id, "message": message.id}[model]
    assert operator.post(reverse(f"admin:conversations_{model}_delete", args=[pk]), {"post": "yes"}).status_code == 403
    assert Message.objects.count() == 2


def test_deleting_a_chat_stops_its_answer_first(operator: Client, chat: Chat, ada: Person) -> None:
    ada.sent(str(chat.id), "Again", turn="t2")
    confirm = operator.get(reverse("admin:conversations_chat_delete", args=[chat.id])).content.decode()
    assert "Plans" in confirm
    assert SECRET not in confirm
    response = operator.post(reverse("admin:conversations_chat_delete", args=[chat.id]), {"post": "yes"})
    assert response.status_code == 302
    assert (Chat.objects.count(), Run.objects.count(), queued()) == (0, 0, [])


def test_chosen_chats_are_deleted_as_one_is(operator: Client, chat: Chat, ada: Person) -> None:
    other = ada.new_chat(title="Other")
    ada.sent(other)
    asked = {"action": "delete_selected", "_selected_action": [str(chat.id), other], "post": "yes"}
    assert operator.post(reverse("admin:conversations_chat_changelist"), asked).status_code == 302
    assert (Chat.objects.count(), Run.objects.count(), queued()) == (0, 0, [])
