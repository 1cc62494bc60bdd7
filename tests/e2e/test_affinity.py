"""Two workers with the real engine: a chat goes on where it is remembered, by the ids that its answers were made of."""

from collections.abc import Iterator

import pytest

from tests import affinity
from tests.client import Api
from tests.recovery import wait_for_workers
from tests.stack import Stack, running

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def site() -> Iterator[Stack]:
    with running(engine="vllm", environment=affinity.ENVIRONMENT) as stack:
        yield stack


def test_nine_in_ten_blocks_of_what_a_chat_has_in_common_with_its_last_turn_are_cached(site: Stack) -> None:
    key = site.manage("create_api_key", "somebody@example.com")
    with Api(url=site.url, key=key) as api:
        wait_for_workers(api, 2)
    near = affinity.share(affinity.measure(site, key=key, chats=4, turns=10))
    affinity.set_delay(site, ms=0)
    anywhere = affinity.share(affinity.measure(site, key=key, chats=4, turns=6))
    print(f"cached of the shared prefix: {near:.1%} with affinity, {anywhere:.1%} without")
    assert near >= 0.9
    assert anywhere < near
