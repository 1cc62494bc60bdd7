"""A chat of forty turns and a window of 2,048 tokens, with the real engine (`make longchat`: two hundred turns)."""

from collections.abc import Iterator

import pytest

from tests import longchat
from tests.stack import TINY_MODEL, Stack, running

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

MOST = longchat.SETTINGS["context_window"] - longchat.SETTINGS["max_output_tokens"]


@pytest.fixture(scope="module")
def site() -> Iterator[Stack]:
    # No wit is needed: what prompts are made of is the same, whatever answers and summaries say.
    with running(engine="vllm", environment={"MODEL": str(TINY_MODEL)}) as stack:
        yield stack


def test_forty_turns_succeed_and_are_cached_between_summaries(site: Stack) -> None:
    chat, turns = longchat.talk(site, turns=40)
    assert {turn.status for turn in turns} == {"done"}
    assert max(turn.prompt for turn in turns) <= MOST
    assert turns[-1].summary_version >= 2
    assert len(longchat.summaries_of(site, chat)) >= turns[-1].summary_version
    steady = longchat.between_updates(turns)
    assert len(steady) >= 30
    share = longchat.cached_share(steady)
    early, late = longchat.median_cost(turns[5:15]), longchat.median_cost(turns[30:])
    print(f"cached between updates: {share:.1%}; a send took {early[0]:.1f} ms of CPU early, {late[0]:.1f} ms late")
    assert share >= 0.8
    assert late[1] <= early[1] + 2, "queries of a send"


def test_with_the_jobs_process_dead_all_along_turns_succeed_and_say_what_is_left_out(site: Stack) -> None:
    with longchat.without_jobs(site):
        chat, turns = longchat.talk(site, turns=25)
    assert {turn.status for turn in turns} == {"done"}
    assert max(turn.prompt for turn in turns) <= MOST
    assert longchat.summaries_of(site, chat) == []
    assert turns[-1].trimmed
    assert all(turn.notices == (("context_trimmed",) if turn.trimmed else ()) for turn in turns)
    assert longchat.cached_share(longchat.between_updates(turns)) >= 0.8
