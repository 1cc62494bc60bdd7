"""The pages that show the prompt that a run was sent with: what they say, who sees them, and what is recorded."""

import hashlib
import html
import json
import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.test import Client

from chatsite.audit.models import AuditEntry
from inference import api, prompts, token_ids
from inference.contracts import ChatTokenizer, ChatTurn, PromptBase
from inference.models import ModelPool, Prompt, Run
from inference.testing import CHATML, tiny_tokenizer
from inference.tests.test_admin import RUNS, staff

pytestmark = pytest.mark.django_db

LINK = "Show the prompt that was sent"
SAID = "My secret\nis <b>4711</b> & “ü”."


@pytest.fixture
def tokenizer(pool: ModelPool, tmp_path: Path, settings: Any) -> ChatTokenizer:
    """That of the default pool, whose tokens are bytes."""
    (tmp_path / "tokenizer.json").write_text(tiny_tokenizer()._tokenizer.to_str())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
    settings.MODEL = str(tmp_path)
    return api.tokenizer_for(api.pool(slug=pool.slug))


@pytest.fixture
def send(accept: Callable[..., Run], tokenizer: ChatTokenizer, pool: ModelPool) -> Callable[..., Run]:
    """Accepts a run with a prompt of these turns, and with the pool's revisions of the moment."""

    def accept_one(*said: str, **changes: Any) -> Run:
        turns = [ChatTurn("user", content) for content in said or (SAID,)]
        revisions = api.revisions_of(api.pool(slug=pool.slug))
        given = {"prompt_ids": tokenizer.encode_chat(turns), "context": {"revisions": revisions}}
        return accept(**given | changes)

    return accept_one


@pytest.fixture
def reader(db: None) -> Client:
    return staff("reader@example.org", "view_run", "view_content")


def shown(browser: Client, run: Run) -> str:
    response = browser.get(f"{RUNS}{run.pk}/prompt/")
    assert response.status_code == 200
    return response.content.decode()


def part(page: str, attribute: str) -> str:
    """What stands in the element with this attribute."""
    [found] = re.findall(rf"<(?:dd|p|div)[^>]* {attribute}[^>]*>(.*?)</(?:dd|p|div)>", page, re.DOTALL)
    return html.unescape(found)


def revisions(page: str) -> dict[str, str]:
    """Part → whether the pool's is the same today."""
    rows = re.findall(
        r'data-revision="([^"]*)">.*?<td>\s*(?:<strong>)?([a-z ]+)(?:</strong>)?\s*</td>\s*</tr>', page, re.S
    )
    return {name: said.strip() for name, said in rows}


def digest(ids: Sequence[int]) -> str:
    return hashlib.sha256(token_ids.pack(ids)).hexdigest()


def views() -> list[tuple[str, str]]:
    return [(entry.actor_email, entry.object_id) for entry in AuditEntry.objects.filter(action="view").order_by("id")]


def test_the_exact_prompt_is_shown_with_its_special_tokens_and_its_digests(
    reader: Client, send: Callable[..., Run], tokenizer: ChatTokenizer
) -> None:
    run = send()
    ids = prompts.rebuild(run_id=run.pk)
    page = shown(reader, run)
    assert part(page, "data-text") == f"<|im_start|>user\n{SAID}<|im_end|>\n<|im_start|>assistant\n"
    assert part(page, "data-tokens").strip() == f"{len(ids):,}"
    assert {part(page, name).strip() for name in ("data-stored", "data-rebuilt")} == {digest(ids)}
    assert "The two agree" in part(page, "data-agreement")
    assert not re.search(r"<style|<script(?![^>]*\ssrc=)|\sstyle=|\son\w+=", page)


def test_what_has_changed_in_the_pool_since_is_told(
    reader: Client, send: Callable[..., Run], pool: ModelPool, tokenizer: ChatTokenizer
) -> None:
    run = send()
    assert revisions(shown(reader, run)) == {
        "system prompt": "yes", "chat template": "yes", "tokenizer": "yes", "weights": "not known",
    }  # fmt: skip
    ModelPool.objects.filter(pk=pool.pk).update(system_prompt="Be rude.")
    page = shown(reader, run)
    assert revisions(page)["system prompt"] == "no"
    assert revisions(page)["tokenizer"] == "yes"
    assert SAID in part(page, "data-text")


@pytest.mark.parametrize(
    ("context", "told", "said"),
    [
        ({"revisions": {"tokenizer": "0123456789ab"}}, "has another tokenizer by now", "no"),
        ({"revisions": {"template": "0123456789ab"}}, "was not recorded", "not known"),
        ({}, "was not recorded", "not known"),
    ],
)
def test_with_another_tokenizer_than_todays_the_ids_are_shown_alone(
    reader: Client, send: Callable[..., Run], context: dict[str, Any], told: str, said: str
) -> None:
    run = send(context=context)
    page = shown(reader, run)
    assert told in part(page, "data-unspelt")
    assert part(page, "data-ids") == " ".join(map(str, prompts.rebuild(run_id=run.pk)))
    assert "data-text" not in page
    assert "secret" not in page
    assert revisions(page)["tokenizer"] == said


def test_without_the_models_files_the_ids_are_shown_alone(
    reader: Client, send: Callable[..., Run], settings: Any, tmp_path: Path
) -> None:
    run = send()
    settings.MODEL = str(tmp_path / "gone")
    page = shown(reader, run)
    assert "are not there to spell it with" in part(page, "data-unspelt")
    assert revisions(page)["tokenizer"] == "not known"


def test_the_ids_of_a_prompt_that_goes_on_from_another_come_whole_as_a_file(
    reader: Client, send: Callable[..., Run], tokenizer: ChatTokenizer
) -> None:
    first = send("Hello.")
    base = PromptBase(run_id=first.pk, shared=first.prompt_tokens, depth=0)
    ids = [*prompts.rebuild(run_id=first.pk), *tokenizer.encode("And on.")]
    second = send(prompt_ids=ids, base=base, chat_id=first.chat_id, kind="summary")
    assert Prompt.objects.get(pk=second.pk).base_id == first.pk
    response = reader.get(f"{RUNS}{second.pk}/prompt/ids/")
    assert response.json() == {"run_id": str(second.pk), "sha256": digest(ids), "ids": ids}
    assert response.headers["Content-Type"] == "application/json"
    assert response.headers["Content-Disposition"] == f'attachment; filename="prompt-{second.pk}.json"'


def test_every_showing_and_every_download_is_recorded(reader: Client, send: Callable[..., Run]) -> None:
    run = send()
    change = f"{RUNS}{run.pk}/change/"
    page = reader.get(change).content.decode()
    assert LINK in page
    assert f"{RUNS}{run.pk}/prompt/" in page
    assert views() == [], "a link shows nothing yet"
    shown(reader, run)
    reader.get(f"{RUNS}{run.pk}/prompt/ids/")
    assert views() == [("reader@example.org", str(run.pk))] * 2
    assert not AuditEntry.objects.filter(detail__contains="secret").exists()


@pytest.mark.parametrize("permissions", [("view_run", "cancel_run"), ("view_content",)])
def test_prompts_are_for_those_who_may_see_runs_and_read_what_people_wrote(
    send: Callable[..., Run], permissions: tuple[str, ...]
) -> None:
    run = send()
    looker = staff("looker@example.org", *permissions)
    for path in ("prompt/", "prompt/ids/"):
        response = looker.get(f"{RUNS}{run.pk}/{path}")
        assert response.status_code == 403
        assert "secret" not in response.content.decode()
    assert LINK not in looker.get(f"{RUNS}{run.pk}/change/").content.decode()
    # Not even whether there is such a run.
    assert looker.get(f"{RUNS}{UUID(int=1)}/prompt/").status_code == 403
    assert views() == []


def test_a_run_that_is_not_there_has_no_prompt(reader: Client) -> None:
    for path in ("prompt/", "prompt/ids/"):
        assert reader.get(f"{RUNS}{UUID(int=1)}/{path}").status_code == 404


def test_a_prompt_is_only_ever_read(reader: Client, send: Callable[..., Run]) -> None:
    run = send()
    for path in ("prompt/", "prompt/ids/"):
        assert reader.post(f"{RUNS}{run.pk}/{path}").status_code == 403
    assert views() == []


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda stored: stored.delete(), "is not stored"),
        (lambda stored: stored.update(rest=b"no zlib"), "cannot be read"),
        (lambda stored: stored.update(rest=zlib.compress(b"abc")), "cannot be read"),
        (lambda stored: stored.update(digest="0" * 64), "has another digest"),
        (lambda stored: stored.update(base_id=UUID(int=1), depth=1), "is not stored"),
    ],
)
def test_what_cannot_be_rebuilt_says_why_and_nothing_is_recorded_as_shown(
    reader: Client, send: Callable[..., Run], spoil: Callable[[Any], object], reason: str
) -> None:
    run = send()
    spoil(Prompt.objects.filter(pk=run.pk))
    page = shown(reader, run)
    assert part(page, "data-trouble").startswith("It cannot be rebuilt: ")
    assert reason in part(page, "data-trouble")
    response = reader.get(f"{RUNS}{run.pk}/prompt/ids/", follow=True)
    assert response.redirect_chain == [(f"{RUNS}{run.pk}/prompt/", 302)]
    assert reason in response.content.decode()
    assert views() == []


def test_a_loop_of_prompts_ends(reader: Client, send: Callable[..., Run]) -> None:
    run = send()
    Prompt.objects.filter(pk=run.pk).update(base_id=run.pk, depth=1)
    assert "It cannot be rebuilt" in shown(reader, run)
