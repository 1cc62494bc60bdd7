"""Every route of the site asks who is there, and shows nobody what is another's.

The routes come from the URL configuration. One that is added is refused to strangers or is named here as open to
everybody; one with an id answers 404 for another user's, or is named here as taking a secret instead.
"""

from typing import Any

import pytest

from tests.walk import inputs
from tests.walk.inputs import JSON, Input
from tests.walk.refusals import complaints
from tests.walk.routes import METHODS, Route, every_route
from tests.walk.site import Answer, Site

pytestmark = pytest.mark.django_db

ROUTES = every_route()
# What is meant for people who are not logged in, by how its address begins.
FOR_EVERYBODY = (
    "login/", "logout/", "signup/", "inactive/", "password/reset/", "email/sent/", "email/confirm/", "email/change/",
    "api/auth/app/v1/config", "api/auth/app/v1/auth/", "api/auth/app/v1/tokens/refresh", "api/schema", "api/docs",
    "api/nothing", "problems/", "healthz", "readyz", "metrics", "admin/login/", "admin/jsi18n/",
)  # fmt: skip
# Two that lead everybody to a page which asks who is there.
LEAD_ELSEWHERE = ("account/sessions/", "admin/logout/")
# Parameters that are a secret of their own or name what is everybody's: no user's id.
NO_IDS = {"uidb36", "key", "token", "app_label", "url", "name", "slug", "code"}
GOOD = Input(
    why="a good body",
    headers=JSON,
    body=b'{"content": "Hello", "client_turn_id": "t9", "title": "Mine", "sessions": [1]}',
)
CLOSED = [
    route for route in ROUTES if not route.template.startswith(FOR_EVERYBODY) and route.template not in LEAD_ELSEWHERE
]
WITH_IDS = [route for route in ROUTES if set(route.parameters) - NO_IDS]


def is_refusal(answer: Answer, route: Route) -> bool:
    """401 below /api/, elsewhere the way to the log-in page; a method that is not there may be refused before."""
    if route.is_api:
        return answer.status == 401 or answer.status == 405
    return answer.status == 405 or (answer.status == 302 and "/login/" in answer.headers["Location"])


def test_the_walk_finds_routes_of_every_kind() -> None:
    assert {route.part for route in ROUTES} >= {
        "pages", "api/v1", "api/auth", "api/schema", "admin", "admin/accounts/user", "admin/conversations/chat",
        "admin/inference/run", "admin/billing/plan",
    }  # fmt: skip
    assert len(ROUTES) > 150
    assert {route.template for route in WITH_IDS} >= {
        "c/{chat_id}/", "account/keys/{key_id}/revoke/", "account/sessions/{device_id}/end/",
        "api/v1/chats/{chat_id}/runs/{run_id}/cancel", "api/v1/runs/{run_id}/events",
        "admin/conversations/chat/{object_id}/change/",
    }  # fmt: skip


@pytest.mark.parametrize("route", CLOSED, ids=str)
def test_without_credentials_a_route_answers_401_or_leads_to_the_login(site: Site, route: Route) -> None:
    answers = {method: site.nobody.call(route, method, site.address(route), GOOD) for method in METHODS}
    assert [method for method, answer in answers.items() if not is_refusal(answer, route)] == []
    assert [words for method, answer in answers.items() for words in complaints(answer, route, method)] == []
    assert {answer.status for answer in answers.values()} != {405}


@pytest.mark.parametrize("route", [route for route in WITH_IDS if not route.part.startswith("admin")], ids=str)
def test_another_users_ids_answer_404(site: Site, route: Route) -> None:
    address = site.address(route)
    # OPTIONS tells about the address, not about what is there.
    methods = [method for method in METHODS if method != "OPTIONS"]
    theirs = {method: site.eve.call(route, method, address, GOOD).status for method in methods}
    own = {method: site.ada.call(route, method, address, GOOD).status for method in methods}
    # Only who owns it finds out that it is there.
    assert set(theirs.values()) <= {404, 405}
    assert [method for method, status in own.items() if status < 400 or status == 409] != []
    assert {method for method, status in theirs.items() if status == 405} == {
        method for method, status in own.items() if status == 405
    }


@pytest.mark.parametrize("route", [route for route in CLOSED if route.part.startswith("admin")], ids=str)
def test_a_user_who_is_no_administrator_gets_nothing_of_the_admin(site: Site, route: Route) -> None:
    answers = [site.ada.call(route, method, site.address(route), inputs.PLAIN) for method in METHODS]
    assert [answer.status for answer in answers if not is_refusal(answer, route)] == []


@pytest.mark.parametrize(
    "authorization", [b"Bearer \xff", b"Bearer ", b"Bearer sk-", b"Bearer a.b.c", b"Basic x", b"", b"x"]
)
@pytest.mark.parametrize("route", [route for route in CLOSED if route.part == "api/v1"], ids=str)
def test_bad_credentials_answer_401(site: Site, route: Route, authorization: bytes) -> None:
    given = Input(why="bad credentials", headers=(*JSON, (b"authorization", authorization)), body=b"{}")
    for method in METHODS:
        answer = site.nobody.call(route, method, site.address(route), given)
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        assert list(complaints(answer, route, method)) == []


def test_a_revoked_key_answers_401(site: Site) -> None:
    person = site.ada.person
    assert person is not None
    key: Any = person.user.api_keys.get()
    try:
        type(key).objects.update(revoked_at=person.user.date_joined)
        for route in CLOSED:
            if route.part == "api/v1":
                assert site.ada.call(route, "GET", site.address(route), inputs.PLAIN).status == 401, route
    finally:
        type(key).objects.update(revoked_at=None)
