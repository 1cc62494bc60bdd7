"""What an answer says about limits, in its headers and, where it refuses, in its body."""

import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from chatsite import problems, rate_limits
from chatsite.accounts import accounts, keys
from inference import errors as inference

pytestmark = [pytest.mark.django_db, pytest.mark.urls("chatsite.tests.urls")]
POLICY = re.compile(r'"(?P<limit>\w+)";q=(?P<maximum>\d+)(?:;w=(?P<window>\d+))?(?:;qu="(?P<unit>[\w-]+)")?')
STANDING = re.compile(r'"(?P<limit>\w+)";r=(?P<remaining>\d+)(?:;t=(?P<reset>\d+))?')


@pytest.fixture
def client() -> Client:
    user = accounts.open_account(email="ada@example.org", password=None)
    secret = keys.create(user=user, name="", now=timezone.now()).secret
    return Client(headers={"authorization": f"Bearer {secret}"})


def told(response: Any) -> tuple[dict[str, str | None], dict[str, str | None]]:
    policy = POLICY.fullmatch(response.headers["RateLimit-Policy"])
    standing = STANDING.fullmatch(response.headers["RateLimit"])
    assert policy
    assert standing
    return policy.groupdict(), standing.groupdict()


def refused(client: Client) -> Any:
    """The first refusal of many requests; a minute may end in between, which begins the count anew."""
    return next(response for _ in range(20) if (response := client.get("/api/probe")).status_code == 429)


def test_every_answer_says_how_many_requests_are_left(client: Client, settings: Settings) -> None:
    settings.API_REQUESTS_PER_MINUTE = 1000
    left = []
    for _ in range(3):
        policy, standing = told(client.get("/api/probe"))
        assert policy == {"limit": "requests_per_minute", "maximum": "1000", "window": "60", "unit": None}
        assert standing["limit"] == "requests_per_minute"
        assert 1 <= int(standing["reset"] or 0) <= 60
        left.append(int(standing["remaining"] or 0))
    # Two of three requests in a row are in the same minute at least.
    assert left[1] == left[0] - 1 or left[2] == left[1] - 1
    assert max(left) == 999


def test_without_a_limit_nothing_is_said_of_one(client: Client, settings: Settings) -> None:
    settings.API_REQUESTS_PER_MINUTE = 0
    response = client.get("/api/probe")
    assert response.status_code == 200
    assert "RateLimit" not in response.headers
    assert "RateLimit-Policy" not in response.headers


@pytest.mark.parametrize(
    ("setting", "limit"),
    [
        ("API_REQUESTS_PER_MINUTE", "requests_per_minute"),
        ("API_REQUESTS_PER_MINUTE_PER_ADDRESS", "requests_per_minute_per_address"),
    ],
)
def test_a_request_too_many_is_told_the_limit_that_it_met(
    client: Client, settings: Settings, setting: str, limit: str
) -> None:
    setattr(settings, setting, 3)
    response = refused(client)
    body = response.json()
    assert (body["code"], body["limit"], body["maximum"], body["remaining"]) == ("throttled", limit, 3, 0)
    policy, standing = told(response)
    assert policy == {"limit": limit, "maximum": "3", "window": "60", "unit": None}
    assert standing == {"limit": limit, "remaining": "0", "reset": response.headers["Retry-After"]}
    assert body["retry_after"] == int(response.headers["Retry-After"])


def test_a_guesser_is_told_the_limit_on_guesses(settings: Settings) -> None:
    settings.API_REQUESTS_PER_MINUTE_PER_ADDRESS = 1000
    guesser = Client(headers={"authorization": "Bearer sk-" + "a" * 43})
    response = next(found for _ in range(130) if (found := guesser.get("/api/probe")).status_code == 429)
    assert told(response)[0]["limit"] == "refused_credentials_per_minute"
    assert response.json()["maximum"] == 60


def test_a_limit_of_the_plan_is_told_the_same_way() -> None:
    response = problems.handle(inference.AdmissionRefused(limit="concurrent_runs", maximum=2, retry_after=5), {})
    assert response is not None
    members = {name: response.data[name] for name in ("limit", "maximum", "remaining", "retry_after")}
    assert members == {"limit": "concurrent_runs", "maximum": 2, "remaining": 0, "retry_after": 5}
    assert response.headers["Retry-After"] == "5"
    policy, standing = told(response)
    assert policy == {"limit": "concurrent_runs", "maximum": "2", "window": None, "unit": "concurrent-requests"}
    assert standing == {"limit": "concurrent_runs", "remaining": "0", "reset": "5"}


def test_what_is_not_known_of_a_limit_is_left_out() -> None:
    assert rate_limits.fields(limit="tokens", maximum=10, remaining=3) == {
        "RateLimit-Policy": '"tokens";q=10',
        "RateLimit": '"tokens";r=3',
    }
