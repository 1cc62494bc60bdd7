"""The chats' routes: exact shapes, and paging."""

import base64
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import pytest
from django.utils import timezone

from conversations.models import Chat, Message, Turn
from conversations.tests.support import Json, Person, claim_by_hand, queued, settle_by_hand
from inference.models import ModelPool, Run

pytestmark = pytest.mark.django_db

CHATS = "/api/v1/chats"


def is_instant(text: str) -> bool:
    return text.endswith("Z") and datetime.fromisoformat(text).tzinfo == UTC


def test_opening_a_chat_answers_201_with_the_chat(ada: Person) -> None:
    response = ada.post(CHATS, {"title": "About Rome"})
    assert response.status_code == 201
    assert response.headers["Content-Type"] == "application/json"
    body = response.json()
    assert is_instant(body["created_at"])
    assert body == {
        "id": str(UUID(body["id"])), "title": "About Rome", "pool": "default",
        "created_at": body["created_at"], "last_active_at": body["created_at"], "active_run": None,
    }  # fmt: skip
    assert UUID(body["id"]).version == 7
    assert str(Chat.objects.get().owner_id) == str(ada.user.id)


@pytest.mark.parametrize("body", [{}, {"pool": None}, {"title": ""}, {"pool": "default", "unknown": 1}])
def test_a_chat_needs_neither_title_nor_pool(ada: Person, body: Json) -> None:
    response = ada.post(CHATS, body)
    assert (response.status_code, response.json()["title"], response.json()["pool"]) == (201, "", "default")


def test_a_chat_can_name_another_pool(ada: Person) -> None:
    ModelPool.objects.create(slug="big", name="Big")
    assert ada.post(CHATS, {"pool": "big"}).json()["pool"] == "big"


def test_a_chat_is_read_back_as_it_was_opened(ada: Person) -> None:
    opened = ada.post(CHATS, {"title": "Ünïcödé \u2028 🙂 <b>"}).json()
    response = ada.get(f"{CHATS}/{opened['id']}")
    assert (response.status_code, response.json()) == (200, opened)


def test_a_chat_that_is_answered_says_where_to_follow_and_afterwards_no_more(ada: Person) -> None:
    chat = ada.new_chat()
    run = ada.sent(chat)["run"]["id"]
    follow = {"id": run, "events_url": f"/api/v1/runs/{run}/events"}
    assert ada.get(f"{CHATS}/{chat}").json()["active_run"] == follow
    assert ada.get(CHATS).json()["results"][0]["active_run"] == follow
    claim_by_hand(run)
    assert ada.get(f"{CHATS}/{chat}").json()["active_run"] == follow
    settle_by_hand(run)
    assert ada.get(f"{CHATS}/{chat}").json()["active_run"] is None


def test_a_chat_is_renamed_and_moved_to_another_pool(ada: Person) -> None:
    ModelPool.objects.create(slug="big", name="Big")
    chat = ada.new_chat(title="Old")
    response = ada.patch(f"{CHATS}/{chat}", {"title": "New", "pool": "big"})
    assert response.status_code == 200
    assert response.json() == ada.get(f"{CHATS}/{chat}").json()
    assert (response.json()["title"], response.json()["pool"]) == ("New", "big")


def test_changing_nothing_answers_with_the_chat(ada: Person) -> None:
    chat = ada.new_chat(title="Old")
    response = ada.patch(f"{CHATS}/{chat}", {})
    assert (response.status_code, response.json()["title"]) == (200, "Old")


def test_renaming_does_not_make_a_chat_the_last_active_one(ada: Person) -> None:
    older, newer = ada.new_chat(title="Older"), ada.new_chat(title="Newer")
    ada.patch(f"{CHATS}/{older}", {"title": "Renamed"})
    assert [chat["id"] for chat in ada.get(CHATS).json()["results"]] == [newer, older]


def test_deleting_a_chat_answers_204_and_then_404(ada: Person) -> None:
    chat = ada.new_chat()
    run = ada.sent(chat)["run"]["id"]
    settle_by_hand(run)
    response = ada.delete(f"{CHATS}/{chat}")
    assert (response.status_code, response.content) == (204, b"")
    assert ada.delete(f"{CHATS}/{chat}").status_code == 404
    for gone in (f"{CHATS}/{chat}", f"{CHATS}/{chat}/messages", f"/api/v1/runs/{run}"):
        assert ada.get(gone).status_code == 404
    assert ada.get(CHATS).json()["results"] == []


@pytest.mark.django_db(transaction=True)
def test_deleting_a_chat_that_is_answered_stops_the_answer(ada: Person) -> None:
    waiting, streaming = ada.new_chat(), ada.new_chat()
    first, second = ada.sent(waiting)["run"]["id"], ada.sent(streaming)["run"]["id"]
    claim_by_hand(second)
    assert ada.delete(f"{CHATS}/{waiting}").status_code == 204
    assert ada.delete(f"{CHATS}/{streaming}").status_code == 204
    assert not Run.objects.filter(id=first).exists()
    assert Run.objects.get(id=second).cancel_requested_at is not None
    assert queued() == []
    assert ada.get(CHATS).json()["results"] == []


def test_the_list_holds_my_chats_last_active_first(ada: Person, eve: Person) -> None:
    first, second, third = (ada.new_chat(title=title) for title in ("1", "2", "3"))
    eve.new_chat(title="not mine")
    settle_by_hand(ada.sent(first)["run"]["id"])
    body = ada.get(CHATS).json()
    assert [chat["id"] for chat in body["results"]] == [first, third, second]
    assert body["results"][0] == ada.get(f"{CHATS}/{first}").json()
    assert (body["next"], body["previous"]) == (None, None)
    assert set(body) == {"results", "next", "previous"}


def many_chats(person: Person, count: int, *, same_time: bool = False) -> list[str]:
    """Ids, last active first."""
    now = timezone.now()
    made = [
        Chat(
            owner=person.user, title=str(i), pool="default", created_at=now,
            last_active_at=now if same_time else now - timedelta(seconds=count - i),
        )
        for i in range(count)
    ]  # fmt: skip
    Chat.objects.bulk_create(made)
    return [str(chat.id) for chat in reversed(made)]


def pages(person: Person, url: str | None, *, link: str = "next") -> list[list[str]]:
    """The ids on every page from `url` on."""
    found = []
    while url is not None:
        body = person.client.get(url).json()
        found.append([row["id"] for row in body["results"]])
        url = body[link]
    return found


@pytest.mark.parametrize("same_time", [False, True], ids=["at different times", "all at once"])
def test_pages_hold_every_chat_once_in_one_order(ada: Person, same_time: bool) -> None:
    expected = many_chats(ada, 25, same_time=same_time)
    walked = pages(ada, f"{CHATS}?limit=10")
    assert [len(page) for page in walked] == [10, 10, 5]
    assert list(chain.from_iterable(walked)) == expected


def test_pages_can_be_walked_back(ada: Person) -> None:
    expected = many_chats(ada, 25)
    url = f"{CHATS}?limit=10"
    for _ in range(2):
        url = ada.client.get(url).json()["next"]
    back = pages(ada, url, link="previous")
    assert list(chain.from_iterable(reversed(back))) == expected


def test_a_new_chat_does_not_shift_the_following_pages(ada: Person) -> None:
    expected = many_chats(ada, 20)
    following = ada.client.get(f"{CHATS}?limit=10").json()["next"]
    ada.new_chat()
    assert pages(ada, following) == [expected[10:]]


def test_links_are_absolute_and_keep_the_limit(ada: Person) -> None:
    many_chats(ada, 5)
    following = urlsplit(ada.client.get(f"{CHATS}?limit=2").json()["next"])
    assert (following.scheme, following.netloc, following.path) == ("http", "testserver", CHATS)
    assert parse_qs(following.query)["limit"] == ["2"]


def test_thirty_chats_make_a_page_unless_another_number_is_asked_for(ada: Person) -> None:
    many_chats(ada, 101)
    assert len(ada.get(CHATS).json()["results"]) == 30
    assert len(ada.get(CHATS, limit=1).json()["results"]) == 1
    assert len(ada.get(CHATS, limit=100).json()["results"]) == 100


@pytest.mark.parametrize(
    "limit", ["abc", "0", "101", "-1", "", " 5", "5 ", "1.0", "1e1", "٣", "9" * 5000, "0x1", "None"]
)
def test_a_limit_that_is_no_number_from_1_to_100_is_refused(ada: Person, limit: str) -> None:
    chat = ada.new_chat()
    for path in (CHATS, f"{CHATS}/{chat}/messages"):
        response = ada.get(path, limit=limit)
        assert response.status_code == 400, path
        assert response.headers["Content-Type"] == "application/problem+json"
        assert response.json()["code"] == "invalid"
        assert "limit" in response.json()["errors"]


def made_up(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "cursor",
    [
        "abc", "!!!!", "é", "\0", "9" * 5000, made_up("abc"), made_up("p="), made_up("p=never"), made_up("o=-1"),
        made_up("o=5000"), made_up("r=2"), made_up("p=2026-01-01"), made_up("p=0001-01-01 00:00:00+14:00"),
        made_up("p=2026-13-01 00:00:00"), made_up("p=" + "9" * 400), made_up("p=1e9"), made_up("p=-1"),
        made_up("p=a\0b"),
    ],
    ids=repr,
)  # fmt: skip
def test_a_cursor_that_no_list_gave_out_is_refused(ada: Person, cursor: str) -> None:
    chat = ada.new_chat()
    for path in (CHATS, f"{CHATS}/{chat}/messages"):
        response = ada.get(path, cursor=cursor)
        assert response.status_code == 400, (path, response.content)
        assert response.headers["Content-Type"] == "application/problem+json"
        assert "cursor" in response.json()["errors"]


def test_an_empty_cursor_asks_for_the_first_page(ada: Person) -> None:
    many_chats(ada, 3)
    assert ada.get(CHATS, cursor="").json() == ada.get(CHATS).json()


def test_a_cursor_of_another_list_is_refused(ada: Person) -> None:
    many_chats(ada, 3)
    chat = ada.new_chat()
    for turn in ("t1", "t2"):
        settle_by_hand(ada.sent(chat, turn=turn)["run"]["id"])
    of_chats = parse_qs(urlsplit(ada.get(CHATS, limit=1).json()["next"]).query)["cursor"][0]
    of_messages = parse_qs(urlsplit(ada.get(f"{CHATS}/{chat}/messages", limit=1).json()["next"]).query)["cursor"][0]
    assert ada.get(CHATS, cursor=of_messages).status_code == 400
    assert ada.get(f"{CHATS}/{chat}/messages", cursor=of_chats).status_code == 400
    assert ada.get(CHATS, cursor=of_chats).status_code == 200


def test_the_cost_of_a_page_does_not_grow_with_it(ada: Person, django_assert_max_num_queries: Any) -> None:
    for chat in many_chats(ada, 5):
        ada.sent(chat)
    with django_assert_max_num_queries(3):
        # The key, the chats, their active runs.
        assert all(chat["active_run"] for chat in ada.get(CHATS).json()["results"])


def test_a_chat_of_many_messages_is_deleted_whole(ada: Person) -> None:
    chat = ada.new_chat()
    for number in range(3):
        settle_by_hand(ada.sent(chat, turn=f"t{number}")["run"]["id"])
    ada.delete(f"{CHATS}/{chat}")
    assert (Turn.objects.count(), Message.objects.count(), Run.objects.count()) == (0, 0, 0)
