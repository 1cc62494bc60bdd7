"""Fixtures of the conversations tests: a site that takes messages, people at its API, a worker to drive."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from billing.models import Plan
from chatsite.asgi import django_application
from conversations.sse import stream_http
from conversations.tests import support
from conversations.tests.support import Caller, Person, Room
from inference import api as inference
from inference.contracts import StreamHub
from inference.models import ModelPool
from inference.testing import CHATML, tiny_tokenizer
from tests import services


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model whose tokens are bytes; it has no weights."""
    folder = tmp_path_factory.mktemp("tiny-model")
    (folder / "tokenizer.json").write_text(tiny_tokenizer()._tokenizer.to_str())
    config = {"chat_template": CHATML, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def site(valkey: services.Valkey, tiny_model: Path, settings: Any) -> None:
    """A site that takes messages: Valkey, the tiny model, and a worker that seems alive and serves nothing.

    A test with real transactions finds the database without the rows that migrations made.
    """
    settings.MODEL = str(tiny_model)
    settings.ENGINE = "scripted"
    ModelPool.objects.get_or_create(slug="default", defaults={"name": "Default", "is_default": True})
    Plan.objects.get_or_create(slug="free", defaults={"name": "Free", "is_default": True})
    support.pretend_a_worker()


@pytest.fixture
def ada(site: None) -> Person:
    return Person("ada@example.org")


@pytest.fixture
def eve(site: None) -> Person:
    return Person("eve@example.org")


@pytest.fixture
def room(site: None) -> Iterator[Room]:
    """An engine room; needs real transactions, because it works in threads."""
    opened = Room()
    yield opened
    opened.close()


@pytest_asyncio.fixture
async def hub(valkey: services.Valkey) -> AsyncIterator[StreamHub]:
    opened = inference.stream_hub()
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def streams(hub: StreamHub) -> Any:
    """The site's ASGI application."""
    return stream_http(django_application, new_hub=lambda: hub)


@pytest_asyncio.fixture
async def caller(streams: Any, ada: Person) -> AsyncIterator[Caller]:
    """Ada, over ASGI."""
    opened = Caller(streams, person=ada)
    yield opened
    await opened.close()
