"""One running site, with the real engine, for all tests of a process."""

from collections.abc import Iterator

import pytest

from tests.client import Api
from tests.stack import Stack, running


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    with running(engine="vllm") as site:
        yield site


@pytest.fixture(scope="session")
def api(stack: Stack) -> Iterator[Api]:
    with Api(url=stack.url, key=stack.manage("create_api_key", "somebody@example.com")) as client:
        yield client
