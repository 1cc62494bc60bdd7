"""What the admin site shows of chats, and what it can do to them."""

import re
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from uuid_utils.compat import uuid7

from chatsite.audit.models import AuditEntry
from conversations import background, operators
from conversations.models import Chat, Job, Message, Summary, Turn
from conversations.tests.support import Person, queued, settle_by_hand
from inference.models import Run

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "My secret is 4711."
TITLE = "Voyage to Zanzibar"
VIEWS = ("view_chat", "view_turn", "view_message", "view_summary", "view_job")


def staff(email: str, *permissions: str) -> Client:
    """A browser of somebody who may do this in the admin; everything without a list."""
    made: Any = get_user_model().objects.create_user(email=email, is_staff=True, is_superuser=not permissions)
    made.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    assert made.user_permissions.count() == len(permissions)
    client = Client()
    client.force_login(made)
    return client


@pytest.fixture
def operator(site: None) -> Client:
    return staff("root@example.org")


@pytest.fixture
def support(site: None) -> Client:
    """Sees chats and messages, and may not read them."""
    return staff("support@example.org", *VIEWS)


@pytest.fixture
def reader(site: None) -> Client:
    return staff("reader@example.org", *VIEWS, "view_content")


@pytest.fixture
def chat(ada: Person) -> Chat:
    opened = ada.new_chat(title=TITLE)
    settle_by_hand(ada.sent(opened, SECRET)["run"]["id"], text=SECRET)
    return Chat.objects.get(id=opened)


@pytest.fixture
def summary(chat: Chat) -> Summary:
    return Summary.objects.create(
        chat=chat,
        version=1,
        first_seq=1,
        last_seq=2,
        content=SECRET,
        model="m",
        run_id=uuid7(),
        created_at=timezone.now(),
    )


@pytest.fixture
def job(chat: Chat) -> Job:
    now = timezone.now()
    return Job.objects.create(chat=chat, kind="summary", pool="default", due_at=now, wanted_at=now)


def page(operator: Client, model: str, *args: object, **query: str) -> str:
    name = f"admin:conversations_{model}_{'change' if args else 'changelist'}"
    response = operator.get(reverse(name, args=args), query)
    assert response.status_code == 200
    return response.content.decode()


def views() -> list[tuple[str, str]]:
    """Who looked at which object, as the trail has it, oldest first."""
    entries = AuditEntry.objects.filter(action="view").order_by("id")
    return [(entry.actor_email, entry.object_id) for entry in entries]


def test_lists_and_screens_open_and_never_show_what_was_written(
    support: Client, chat: Chat, summary: Summary, job: Job
) -> None:
    message = Message.objects.get(chat=chat, role="user")
    pages = [page(support, model) for model in ("chat", "turn", "message", "summary", "job")]
    pages += [
        page(support, "chat", chat.id),
        page(support, "turn", message.turn_id),
        page(support, "message", message.id),
        page(support, "summary", summary.id),
        page(support, "job", job.id),
    ]
    assert all(str(chat.id) in shown for shown in pages)
    assert all(written not in shown for shown in pages for written in (SECRET, "Zanzibar"))
    assert support.get(reverse("admin:conversations_chat_changelist"), {"titles": "shown"}).status_code == 400
    assert views() == []


def test_without_the_permission_what_was_written_is_not_even_loaded(
    support: Client, chat: Chat, summary: Summary
) -> None:
    message = Message.objects.get(chat=chat, role="user")
    with CaptureQueriesContext(connection) as asked:
        page(support, "chat")
        page(support, "chat", chat.id)
        page(support, "message")
        page(support, "message", message.id)
        page(support, "summary")
        page(support, "summary", summary.id)
    assert [query["sql"] for query in asked if '"content"' in query["sql"] or '"title"' in query["sql"]] == []


@pytest.mark.parametrize("spelled", ["{}", "urn_3Auuid_3A{}"])
def test_however_its_address_is_spelled_what_is_shown_is_recorded(reader: Client, chat: Chat, spelled: str) -> None:
    message = Message.objects.get(chat=chat, role="assistant")
    assert SECRET in reader.get(f"/admin/conversations/message/{spelled.format(message.id)}/change/").content.decode()
    assert "Zanzibar" in reader.get(f"/admin/conversations/chat/{spelled.format(chat.id)}/change/").content.decode()
    assert views() == [("reader@example.org", str(one)) for one in (message.id, chat.id)]


@pytest.mark.parametrize("word", ["Zanzibar", "zzz"])
def test_titles_are_searched_where_each_hit_is_recorded_and_nowhere_else(
    reader: Client, operator: Client, chat: Chat, word: str
) -> None:
    chosen = {"app_label": "conversations", "model_name": "message", "field_name": "chat", "term": word}
    assert reader.get("/admin/autocomplete/", chosen).json()["results"] == []
    # What an action asks about is the same whether a word finds it or not.
    ticked = {"action": "delete_selected", "_selected_action": str(chat.id)}
    asked = operator.post(reverse("admin:conversations_chat_changelist") + f"?q={word}", ticked)
    assert str(chat.id) in asked.content.decode()
    assert views() == []


def test_a_page_of_titles_is_recorded_in_one_statement(reader: Client, chat: Chat, ada: Person) -> None:
    for number in range(5):
        ada.new_chat(title=f"Chat {number}")
    with CaptureQueriesContext(connection) as asked:
        page(reader, "chat", titles="shown")
    assert len([query for query in asked if 'INSERT INTO "audit_auditentry"' in query["sql"]]) == 1
    assert len(views()) == 6


def test_with_the_permission_each_showing_is_recorded(reader: Client, chat: Chat) -> None:
    message = Message.objects.get(chat=chat, role="assistant")
    assert SECRET not in page(reader, "message"), "lists show no content to anybody"
    assert "Zanzibar" not in page(reader, "chat"), "nor titles, unless asked for"
    assert views() == []
    assert SECRET in page(reader, "message", message.id)
    assert "Zanzibar" in page(reader, "chat", chat.id)
    assert "Zanzibar" in page(reader, "chat", titles="shown")
    assert SECRET in page(reader, "message", message.id)
    who = "reader@example.org"
    seen = [message.id, chat.id, chat.id, message.id]
    assert views() == [(who, str(one)) for one in seen]
    assert not AuditEntry.objects.filter(detail__contains="Zanzibar").exists()


def test_a_summary_is_shown_to_those_who_may_read_it_and_each_showing_is_recorded(
    reader: Client, summary: Summary
) -> None:
    assert SECRET not in page(reader, "summary"), "lists show no content to anybody"
    assert views() == []
    assert SECRET in page(reader, "summary", summary.id)
    assert views() == [("reader@example.org", str(summary.id))]
    response = reader.get(reverse("admin:conversations_summary_changelist"), {"content__startswith": "M"})
    assert response.status_code == 400


def test_the_list_of_summaries_tells_of_what_they_were_made(support: Client, summary: Summary) -> None:
    row = " ".join(re.sub("<[^>]*>", " ", page(support, "summary")).split())
    assert f"{summary.id} {summary.chat_id} 1 1 2 m " in row
    assert str(summary.id) in page(support, "summary", q=str(summary.run_id))
    assert str(summary.id) in page(support, "summary", q="ada@example.org")
    assert str(summary.id) not in page(support, "summary", q=str(uuid7()))


def test_the_list_of_jobs_tells_what_is_wanted(support: Client, job: Job) -> None:
    row = " ".join(re.sub("<[^>]*>", " ", page(support, "job")).split())
    assert f"{job.id} Summary {job.chat_id} default - 0 " in row
    assert str(job.id) in page(support, "job", q=str(job.chat_id))
    assert str(job.id) not in page(support, "job", q=str(uuid7()))


def test_whose_a_chats_title_is_can_be_seen_without_reading_it(support: Client, chat: Chat) -> None:
    Chat.objects.filter(id=chat.id).update(title_by=Chat.TitleBy.MODEL, summary_version=7)
    shown = page(support, "chat", chat.id)
    assert re.search(r'field-title_by">.*?readonly">A model<', shown, re.DOTALL | re.IGNORECASE)
    assert re.search(r'field-summary_version">.*?readonly">7<', shown, re.DOTALL)
    assert views() == []


def test_the_prompt_of_the_systems_own_work_can_be_shown(operator: Client, ada: Person) -> None:
    opened = ada.new_chat()
    settle_by_hand(ada.sent(opened, SECRET)["run"]["id"])
    assert background.dispatch(now=timezone.now()) == 1
    run = Run.objects.get(kind="title")
    shown = operator.get(reverse("admin:inference_run_prompt", args=[run.id])).content.decode()
    assert f"Question: {SECRET}" in shown
    assert "You give conversations short titles" in shown
    assert views() == [("root@example.org", str(run.id))]


@pytest.mark.parametrize("looked_for", ["ada@example.org", "ADA@example.org", "{owner}", "{chat}"])
def test_a_chat_is_found_by_owner_and_id(support: Client, chat: Chat, eve: Person, looked_for: str) -> None:
    other = eve.new_chat(title=TITLE)
    found = page(support, "chat", q=looked_for.format(owner=chat.owner_id, chat=chat.id))
    assert str(chat.id) in found
    assert other not in found


@pytest.mark.parametrize("model", ["turn", "message"])
@pytest.mark.parametrize("looked_for", ["ada@example.org", "{chat}", "{run}"])
def test_turns_and_messages_are_found_by_owner_chat_and_run(
    support: Client, chat: Chat, eve: Person, model: str, looked_for: str
) -> None:
    mine = Message.objects.get(chat=chat, role="user")
    eve.sent(eve.new_chat())
    other = Message.objects.exclude(chat=chat).get()
    found = page(support, model, q=looked_for.format(chat=chat.id, run=mine.run_id))
    assert str(mine.id if model == "message" else mine.turn_id) in found
    assert str(other.id if model == "message" else other.turn_id) not in found


def test_titles_are_searched_by_those_who_may_read_them_and_every_hit_is_recorded(
    reader: Client, chat: Chat, eve: Person
) -> None:
    other = eve.new_chat(title="Zanzibar again")
    found = page(reader, "chat", q="zanzibar")
    assert [one in found for one in (str(chat.id), other)] == [True, True]
    assert sorted(views()) == sorted(("reader@example.org", one) for one in (str(chat.id), other))
    found = page(reader, "chat", q="ada@example.org zanzibar")
    assert [one in found for one in (str(chat.id), other)] == [True, False]
    assert str(chat.id) not in page(reader, "chat", q="Madagascar")


def test_titles_are_searched_among_the_newest_chats_or_one_owners(
    reader: Client, chat: Chat, ada: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "TITLES_SEARCHED", 2)
    newer = [ada.new_chat(title="Zanzibar") for _ in range(2)]
    found = page(reader, "chat", q="Zanzibar")
    assert [one in found for one in (*newer, str(chat.id))] == [True, True, False]
    assert str(chat.id) in page(reader, "chat", q="Zanzibar ada@example.org")


@pytest.mark.parametrize(
    ("model", "query"),
    [
        ("chat", {"title__startswith": "V"}),
        ("chat", {"title": TITLE}),
        ("message", {"content__startswith": "M"}),
        ("message", {"chat__title__startswith": "V"}),
        ("message", {"turn__fingerprint__startswith": "0"}),
        ("turn", {"fingerprint__startswith": "0"}),
        ("turn", {"messages__content__contains": "4711"}),
    ],
)
def test_nothing_can_be_guessed_through_the_address_of_a_list(
    support: Client, chat: Chat, model: str, query: dict[str, str]
) -> None:
    response = support.get(reverse(f"admin:conversations_{model}_changelist"), query)
    assert response.status_code == 400
    assert str(chat.id) not in response.content.decode()


@pytest.mark.parametrize("word", ["Zanzibar", "zzz", '"Voyage to Zanzibar"'])
def test_without_the_permission_a_word_of_a_title_finds_what_any_word_finds(
    support: Client, chat: Chat, word: str
) -> None:
    assert str(chat.id) not in page(support, "chat", q=word)
    assert "0 chats" in " ".join(page(support, "chat", q=word).split())


def test_without_the_permission_no_column_sorts_by_titles(support: Client, chat: Chat, ada: Person) -> None:
    ada.new_chat(title="Aardvark")
    orders = set()
    for column in range(-8, 9):
        shown = page(support, "chat", o=str(column))
        orders.add(tuple(re.findall(r"/admin/conversations/chat/([0-9a-f-]{36})/change/", shown)))
    newest_first = tuple(str(pk) for pk in Chat.objects.order_by("-id").values_list("id", flat=True))
    assert orders <= {newest_first, newest_first[::-1]}


def test_a_digest_of_what_was_asked_is_shown_to_nobody(operator: Client, chat: Chat) -> None:
    turn = Turn.objects.get(chat=chat)
    assert turn.fingerprint
    assert turn.fingerprint not in page(operator, "turn", turn.id)


def test_chats_are_filtered_by_pool_without_reading_them_all(support: Client, chat: Chat) -> None:
    with CaptureQueriesContext(connection) as asked:
        assert str(chat.id) in page(support, "chat", pool="default")
    assert str(chat.id) not in page(support, "chat", pool="other")
    assert not any("DISTINCT" in query["sql"] for query in asked)


@pytest.mark.parametrize("model", ["chat", "turn", "message", "summary", "job"])
def test_nothing_is_added_or_changed_by_hand(
    operator: Client, chat: Chat, summary: Summary, job: Job, model: str
) -> None:
    assert operator.get(reverse(f"admin:conversations_{model}_add")).status_code == 403
    message = Message.objects.get(chat=chat, role="user")
    pk = {"chat": chat.id, "turn": message.turn_id, "message": message.id, "summary": summary.id, "job": job.id}[model]
    assert operator.post(reverse(f"admin:conversations_{model}_change", args=[pk]), {"title": "x"}).status_code == 403


@pytest.mark.parametrize("model", ["turn", "message", "summary", "job"])
def test_what_is_in_a_chat_goes_with_it_and_never_alone(
    operator: Client, chat: Chat, summary: Summary, job: Job, model: str
) -> None:
    message = Message.objects.get(chat=chat, role="user")
    pk = {"turn": message.turn_id, "message": message.id, "summary": summary.id, "job": job.id}[model]
    assert operator.post(reverse(f"admin:conversations_{model}_delete", args=[pk]), {"post": "yes"}).status_code == 403
    assert [kind.objects.count() for kind in (Turn, Message, Summary, Job)] == [1, 2, 1, 1]


def test_deleting_a_chat_stops_its_answer_first(operator: Client, chat: Chat, ada: Person) -> None:
    ada.sent(str(chat.id), "Again", turn="t2")
    confirm = operator.get(reverse("admin:conversations_chat_delete", args=[chat.id])).content.decode()
    assert str(chat.id) in confirm
    assert "Zanzibar" not in confirm
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
