"""The prompt that a run was accepted with, as operators are shown it: rebuilt, checked, spelt where that can be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference import api, prompts
from inference.errors import ServiceUnavailable
from inference.models import Run
from inference.tokenization import ChatTokenizer

_NAMES = {"system_prompt": "system prompt", "template": "chat template"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A part of what the prompt was made with, by its digest of then and today's: empty = not known."""

    name: str
    then: str
    today: str

    @property
    def is_same(self) -> bool | None:
        """None where it cannot be told."""
        return self.then == self.today if self.then and self.today else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SentPrompt:
    """The token ids, their SHA-256 (hex digits of the packed ids) as stored and as rebuilt, and the pool's revisions.

    `text` is None where the ids cannot be spelt by what the pool has today: `unspelt` says why.
    """

    ids: Sequence[int]
    stored_sha256: str
    sha256: str
    revisions: Sequence[Revision]
    text: str | None
    unspelt: str = ""


def of_run(run: Run) -> SentPrompt:
    """The run's prompt. Raises PromptNotRebuilt."""
    ids = prompts.rebuild(run_id=run.pk)
    then = _recorded(run)
    tokenizer, today = _of_today(run)
    unspelt = _why_unspelt(then, tokenizer)
    return SentPrompt(
        ids=ids,
        stored_sha256=prompts.stored_digest(run_id=run.pk),
        sha256=prompts.digest_of(ids),
        revisions=[
            Revision(name=_NAMES.get(name, name), then=then.get(name, ""), today=today.get(name, ""))
            for name in {**then, **today}
        ],
        text=tokenizer.spell(ids) if tokenizer is not None and not unspelt else None,
        unspelt=unspelt,
    )


def _recorded(run: Run) -> dict[str, str]:
    """The revisions that the run was accepted with; none of runs from before they were recorded."""
    context: Any = run.context
    found = context.get("revisions") if isinstance(context, Mapping) else None
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, Mapping) else {}


def _of_today(run: Run) -> tuple[ChatTokenizer | None, dict[str, str]]:
    """The tokenizer and the revisions of the run's pool as it is now; neither where its model's files are not there."""
    try:
        pool = api.pool(slug=run.pool.slug)
        return api.tokenizer_for(pool), api.revisions_of(pool)
    except ServiceUnavailable:
        return None, {}


def _why_unspelt(then: Mapping[str, str], tokenizer: ChatTokenizer | None) -> str:
    """Why the ids have no text today; empty where they have."""
    if "tokenizer" not in then:
        return "Which tokenizer the prompt was made with was not recorded."
    if tokenizer is None:
        return "The files of the pool’s model are not there to spell it with."
    if tokenizer.tokenizer_revision != then["tokenizer"]:
        return "The pool has another tokenizer by now, which would spell other text."
    return ""
