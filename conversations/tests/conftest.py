"""Fixtures of the conversations tests: a real Valkey, users with API keys, and a worker that can be driven."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.apps import apps
from django.test import Client

from conversations.tests.support import CHATML, Person, Room, a_person, keep_a_worker_alive
from inference import store
from inference.testing import tiny_tokenizer
from tests import services


@pytest.fixture(scope="session")
def valkey() -> Iterator[services.Valkey]:
    with services.valkey() as server:
        yield server
