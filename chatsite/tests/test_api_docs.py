"""The API's documentation page, as the server gives it out."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.conf import settings
from django.contrib.staticfiles import finders
from django.test import Client

from chatsite import api_docs
from chatsite.tests.test_security_headers import POLICY, inline_code

ASSETS = ("swagger-ui/swagger-ui-bundle.js", "swagger-ui/swagger-ui.css")


@pytest.mark.django_db
def test_the_page_is_for_everybody_and_keeps_to_the_policy_of_all_pages(client: Client) -> None:
    response = client.get("/api/docs")
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/html")
    assert set(response.headers["Content-Security-Policy"].split("; ")) == POLICY
    assert inline_code(response.content.decode()) == []
    assert settings.CSRF_COOKIE_NAME in response.cookies
    assert 'data-schema-url="/api/schema"' in response.content.decode()


@pytest.mark.django_db
def test_everything_that_the_page_loads_is_served_by_the_site_itself(client: Client) -> None:
    page = client.get("/api/docs").content.decode()
    loaded = re.findall(r'(?:src|href)="(/static/[^"]+)"', page)
    assert {f"/static/{name}" for name in ASSETS} < set(loaded)
    assert {path: client.get(path).status_code for path in loaded} == dict.fromkeys(loaded, 200)


def test_no_more_of_the_package_is_shipped_than_the_page_needs() -> None:
    listed = {
        f"{storage.prefix}/{name}"
        for name, storage in finders.get_finder("chatsite.static_finders.SwaggerUiFiles").list(None)
    }
    assert listed == set(ASSETS)
    assert finders.find(ASSETS[0], find_all=True)
    for other in ("swagger-ui/oauth2-redirect.html", "swagger-ui/../swagger-ui.css", "swagger-ui", "swagger-ui/"):
        assert finders.find(other) is None, other


def test_writing_to_the_page_is_refused(client: Client) -> None:
    assert client.post("/api/docs").status_code == 405


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [("application/json", "application/json"), ("*/*", "application/vnd.oai.openapi; charset=utf-8")],
)
def test_the_schema_comes_as_json_or_yaml(client: Client, accept: str, content_type: str) -> None:
    response = client.get("/api/schema", headers={"accept": accept})
    assert (response.status_code, response.headers["Content-Type"]) == (200, content_type)


def test_the_schema_is_made_once_for_all_who_ask_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asking = threading.Barrier(4)
    made: list[int] = []

    class Generator:
        def get_schema(self, **_: Any) -> dict[str, Any]:
            made.append(threading.get_ident())
            return {"openapi": "3.0.3"}

    def ask() -> int:
        asking.wait(20)
        return Client().get("/api/schema").status_code

    monkeypatch.setattr(api_docs, "SchemaGenerator", Generator)
    api_docs._document.cache_clear()
    try:
        with ThreadPoolExecutor(4) as pool:
            assert [asked.result(30) for asked in [pool.submit(ask) for _ in range(4)]] == [200] * 4
    finally:
        api_docs._document.cache_clear()
    assert len(made) == 1
