"""Prompts that go on from one another: as encoding the whole chat makes them, or not at all."""

import os
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference import token_ids, tokenization
from inference.testing import CHATML, tiny_tokenizer
from inference.tests.test_tokenization import ATTACKS, HARMLESS, merging_tokenizer
from inference.tokenization import ChatTokenizer, ChatTurn

SYSTEM = ChatTurn("system", "Be kind.")
# Leaves reasoning out of every answer but the last one, as templates of reasoning models do.
FORGETFUL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content.split('</think>')[-1] if m.role == 'assistant' and not loop.last else m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Opens answers with something that older answers do not begin with.
THOUGHTFUL = CHATML.replace("assistant\n' }}{% endif", "assistant\n<think>' }}{% endif")
# Says how far the chat is, so that older prompts are no beginnings of newer ones.
COUNTING = "{{ messages|length }} " + CHATML
TRIMMING = CHATML.replace("message['content']", "message['content']|trim")


def goes_on(tokenizer: ChatTokenizer, chat: list[ChatTurn], answer: str, new: str) -> bool:
    """Whether the chat's next prompt is made of the last one; it is then what the whole chat gives."""
    last, said = ChatTurn("assistant", answer), ChatTurn("user", new)
    made = tokenizer.extend_chat(tokenizer.encode_chat(chat), answer=last, new=said)
    if made is None:
        return False
    assert made == tokenizer.encode_chat([*chat, last, said])
    return True


@pytest.mark.parametrize("answer", [*HARMLESS, *ATTACKS])
@pytest.mark.parametrize("new", [*HARMLESS[:4], *ATTACKS[:3]])
def test_any_answer_and_any_message_go_on(answer: str, new: str) -> None:
    chat = [SYSTEM, ChatTurn("user", "One?"), ChatTurn("assistant", "\nOne."), ChatTurn("user", " two\n")]
    assert goes_on(tiny_tokenizer(), chat, answer, new)


texts = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)


@settings(max_examples=150, deadline=None)
@given(st.lists(texts, min_size=1, max_size=7).filter(lambda said: len(said) % 2 == 1), texts, texts)
def test_whatever_was_said_what_goes_on_is_what_the_whole_chat_gives(said: list[str], answer: str, new: str) -> None:
    roles = ("user", "assistant")
    chat = [SYSTEM, *(ChatTurn(roles[number % 2], text) for number, text in enumerate(said))]
    goes_on(merging_tokenizer(CHATML), chat, answer, new)
    goes_on(merging_tokenizer(TRIMMING), chat, answer, new)
    assert goes_on(tiny_tokenizer(), chat, answer, new)


def test_prompts_whose_template_changes_what_was_said_before_do_not_go_on() -> None:
    chat = [SYSTEM, ChatTurn("user", "One?")]
    assert not goes_on(merging_tokenizer(COUNTING), chat, "One.", "Two?")
    assert not goes_on(merging_tokenizer(THOUGHTFUL), chat, "One.", "Two?")
    assert goes_on(merging_tokenizer(THOUGHTFUL), chat, "<think>Hm</think>One.", "Two?")
    # What is left out of an older answer was never in the prompt that it answered.
    assert goes_on(merging_tokenizer(FORGETFUL), chat, "<think>Hm</think>One.", "Two?")


def test_a_template_that_says_the_day_goes_on_after_midnight(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = merging_tokenizer("{{ strftime_now('%d %b %Y') }}\n" + CHATML)

    def goes_on_now() -> bool:
        return goes_on(tokenizer, [SYSTEM, ChatTurn("user", "One?")], "One.", "Two?")

    assert goes_on_now()

    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) + timedelta(days=1)

    monkeypatch.setattr(tokenization, "datetime", Tomorrow)
    assert goes_on_now()


def test_an_answers_own_ids_go_on_where_they_spell_it() -> None:
    tokenizer = tiny_tokenizer()
    chat = [SYSTEM, ChatTurn("user", "One?")]
    own = tokenizer.encode("One.")
    answer = ChatTurn("assistant", "One.", token_ids.pack(own))
    prompt = tokenizer.encode_chat(chat)
    made = tokenizer.extend_chat(prompt, answer=answer, new=ChatTurn("user", "Two?"))
    assert made is not None
    assert made[: len(prompt) + len(own)] == [*prompt, *own]


def test_revisions_name_template_and_tokenizer_whichever_process_asks() -> None:
    one, other = merging_tokenizer(CHATML), merging_tokenizer(CHATML)
    assert one.template_revision == other.template_revision != merging_tokenizer(COUNTING).template_revision
    assert one.tokenizer_revision == other.tokenizer_revision != tiny_tokenizer().tokenizer_revision


@pytest.mark.engine
def test_the_bundled_models_prompts_go_on() -> None:
    folder = Path(__file__).parents[2] / "var" / "models" / "smollm2-135m-instruct"
    tokenizer = tokenization.load(os.environ.get("MODEL") or str(folder))
    chat = [SYSTEM, ChatTurn("user", "How do ships sail?")]
    for number in range(4):
        answer, new = f"{number}. With the wind 🙂, in **short**. ", f"And ship {number}?\n"
        assert goes_on(tokenizer, chat, answer, new)
        chat += [ChatTurn("assistant", answer), ChatTurn("user", new)]
    # Here text merges across the seam: the answer's own ids would know better.
    assert not goes_on(tokenizer, chat, "\n0. Hello", "Well?")
    own = token_ids.pack(tokenizer.encode("\n0. Hello"))
    prompt = tokenizer.encode_chat(chat)
    answered = ChatTurn("assistant", "\n0. Hello", own)
    made = tokenizer.extend_chat(prompt, answer=answered, new=ChatTurn("user", "Well?"))
    assert made == tokenizer.encode_chat([*chat, answered, ChatTurn("user", "Well?")])
