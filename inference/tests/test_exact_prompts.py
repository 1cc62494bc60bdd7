"""Prompts that hold an answer's own token ids: the next turn's begins with what the engine has in its prefix cache."""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from inference import token_ids, tokenization
from inference.testing import CHATML
from inference.tokenization import ChatTokenizer, ChatTurn

SMALL = Path(__file__).resolve().parents[2] / "var" / "models" / "smollm2-135m-instruct"
SYSTEM = ChatTurn("system", "Be brief.")
TRIMMING = CHATML.replace("message['content']", "(message['content'] | trim)")
SPECIALS = ("<|im_start|>", "<|im_end|>")


def merging_tokenizer(template: str = CHATML, *, normalizer: normalizers.Normalizer | None = None) -> ChatTokenizer:
    """Bytes with merges that cross words and lines, so that text has more than one spelling in ids."""
    tokens = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "aba", "Ċa", "aĊ"]
    merges = [("a", "b"), ("ab", "a"), ("Ċ", "a"), ("a", "Ċ")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return chat_tokenizer(tokenizer, template)


def spacing_tokenizer() -> ChatTokenizer:
    """Puts a space before every piece that it is given, as models made with SentencePiece do."""
    tokens = [*SPECIALS, "<unk>", "▁", "a", "b", "▁a", "ba"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("▁", "a"), ("b", "a")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return chat_tokenizer(tokenizer, "{% for m in messages %}{{ m['content'] }}b{% endfor %}")


def chat_tokenizer(tokenizer: Tokenizer, template: str) -> ChatTokenizer:
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    return ChatTokenizer(tokenizer=tokenizer, template=template, special_tokens={})


MERGING = merging_tokenizer()


@cache
def small() -> ChatTokenizer:
    """The tokenizer of the bundled model."""
    return tokenization.load(os.environ.get("MODEL") or str(SMALL))


@cache
def spellings(tokenizer: ChatTokenizer) -> list[int]:
    """The ids that are whole text by themselves: any sequence of them is an answer."""
    vocabulary = range(tokenizer._tokenizer.get_vocab_size())
    return [i for i in vocabulary if i not in tokenizer.special_ids and tokenizer.decode([i]).isprintable()][:-1]


def answer(tokenizer: ChatTokenizer, ids: Sequence[int]) -> ChatTurn:
    """What an engine made."""
    return ChatTurn("assistant", tokenizer.decode(ids), token_ids.pack(ids))


def retold(turns: Sequence[ChatTurn]) -> list[ChatTurn]:
    """The same chat without its ids."""
    return [ChatTurn(turn.role, turn.content) for turn in turns]


def ids_of(text: str, tokenizer: ChatTokenizer = MERGING) -> list[int]:
    """A letter a token, whatever the merges say."""
    return [i for letter in text for i in tokenizer.encode(letter)]


def test_an_answer_goes_into_the_prompt_as_it_was_made() -> None:
    made = ids_of("abab")
    assert made != MERGING.encode("abab")
    chat = [SYSTEM, ChatTurn("user", "Hi")]
    before = MERGING.encode_chat(chat)
    after = MERGING.encode_chat([*chat, answer(MERGING, made), ChatTurn("user", "And?")])
    assert after[: len(before) + len(made)] == [*before, *made]


@pytest.mark.parametrize("asked", ["Hi", "<|im_end|>", "a < b |> c", "abab\n", "\n"])
def test_beside_any_question(asked: str) -> None:
    made = ids_of("\nabab\n")
    chat = [SYSTEM, ChatTurn("user", asked)]
    before = MERGING.encode_chat(chat)
    after = MERGING.encode_chat([*chat, answer(MERGING, made), ChatTurn("user", asked)])
    assert after[: len(before) + len(made)] == [*before, *made]


def _grows(tokenizer: ChatTokenizer, asked: Sequence[str], made: Sequence[Sequence[int]]) -> None:
    """Check that each turn's prompt begins with the one before and the answer to it, and is the same text."""
    chat, known = [SYSTEM], list[int]()
    for question, ids in zip(asked, made, strict=True):
        chat.append(ChatTurn("user", question))
        prompt = tokenizer.encode_chat(chat)
        assert prompt[: len(known)] == known
        assert tokenizer.decode(prompt) == tokenizer.decode(tokenizer.encode_chat(retold(chat)))
        chat.append(answer(tokenizer, ids))
        known = [*prompt, *ids]


_TURNS = 3


@given(
    asked=st.lists(st.text(), min_size=_TURNS, max_size=_TURNS),
    made=st.lists(st.lists(st.integers(0, 10_000), min_size=1, max_size=8), min_size=_TURNS, max_size=_TURNS),
)
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("tokenizer", [lambda: MERGING, small], ids=["merging", "bundled"])
def test_every_turns_prompt_begins_with_the_last_one_and_its_answer(
    tokenizer: object, asked: list[str], made: list[list[int]]
) -> None:
    assert callable(tokenizer)
    chosen = spellings(tokenizer())
    _grows(tokenizer(), asked, [[chosen[i % len(chosen)] for i in ids] for ids in made])


def test_text_that_the_template_changes_is_tokenised_and_the_rest_is_as_it_was_made() -> None:
    tokenizer = merging_tokenizer(TRIMMING)
    trimmed, kept = answer(tokenizer, ids_of(" abab ")), answer(tokenizer, ids_of("abab"))
    ids = tokenizer.encode_chat([SYSTEM, trimmed, ChatTurn("user", "Hi"), kept])
    assert ids == tokenizer.encode_chat([SYSTEM, *retold([trimmed]), ChatTurn("user", "Hi"), kept])
    plain = tokenizer.encode_chat([SYSTEM, *retold([trimmed]), ChatTurn("user", "Hi"), *retold([kept])])
    assert len(ids) == len(plain) + len(ids_of("abab")) - len(tokenizer.encode("abab"))


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m['content'] }}{{ m['content'] }}{% endfor %}",
        "{% for m in messages if m['role'] == 'user' %}{{ m['content'] }}{% endfor %}",
        "{% for m in messages %}{{ m['content'] | upper }}{% endfor %}",
        "{{ messages | map(attribute='content') | join | length }}",
        "{% for m in messages %}{{ m['content'][1:] }}{% endfor %}",
    ],
)
def test_whatever_a_template_makes_of_an_answer_the_text_is_what_it_says(template: str) -> None:
    tokenizer = merging_tokenizer(template)
    chat = [ChatTurn("user", "b"), answer(tokenizer, ids_of("abab")), ChatTurn("user", "c")]
    assert tokenizer.encode_chat(chat) == tokenizer.encode_chat(retold(chat))


def test_ids_that_are_not_the_text_are_left_alone_and_others_not() -> None:
    replaced = ChatTurn("assistant", "ab\N{REPLACEMENT CHARACTER}", token_ids.pack(ids_of("ab\0")))
    of_another = ChatTurn("assistant", "abab", token_ids.pack([7, 100_000]))
    exact = answer(MERGING, ids_of("abab"))
    chat = [replaced, ChatTurn("user", "Hi"), of_another, ChatTurn("user", "Hi"), exact]
    assert MERGING.encode_chat(chat) == MERGING.encode_chat([*retold(chat[:-1]), exact])
    assert MERGING.encode_chat(chat) != MERGING.encode_chat(retold(chat))


def test_a_special_token_amid_an_answer_gets_into_no_prompt() -> None:
    ids = [*ids_of("ab"), MERGING.encode_chat([SYSTEM])[0], *ids_of("ab")]
    chat = [ChatTurn("user", "Hi"), answer(MERGING, ids)]
    assert MERGING.encode_chat(chat) == MERGING.encode_chat(retold(chat))
    spelt_out = [ChatTurn("user", "Hi"), ChatTurn("assistant", "ab<|im_start|>ab", token_ids.pack(ids))]
    assert MERGING.encode_chat(spelt_out) == MERGING.encode_chat(retold(spelt_out))


def test_a_tokenizer_that_makes_other_text_of_pieces_is_given_the_whole() -> None:
    tokenizer = spacing_tokenizer()
    vocabulary = tokenizer._tokenizer.get_vocab()
    made = [vocabulary[letter] for letter in "baba"]
    chat = [ChatTurn("user", "aba"), ChatTurn("assistant", "baba", token_ids.pack(made))]
    assert tokenizer.encode_chat(chat) == tokenizer.encode_chat(retold(chat))


def test_a_tokenizer_that_normalises_what_people_write_takes_answers_as_they_were_made() -> None:
    tokenizer = merging_tokenizer(normalizer=normalizers.NFC())
    chat = [ChatTurn("user", "e\N{COMBINING ACUTE ACCENT}"), answer(tokenizer, ids_of("abab", tokenizer))]
    assert tokenizer.encode_chat(chat) != tokenizer.encode_chat(retold(chat))
    assert tokenizer.decode(tokenizer.encode_chat(chat)) == tokenizer.decode(tokenizer.encode_chat(retold(chat)))


def test_characters_that_the_tokenizer_does_not_know_change_nothing_of_answers() -> None:
    tokenizer, unknown = small(), "\U00040000"
    assert unknown not in tokenizer.decode(tokenizer.encode(unknown))
    made = ids_of("Rome", tokenizer)
    chat = [SYSTEM, ChatTurn("user", unknown), answer(tokenizer, made), ChatTurn("user", unknown)]
    before = tokenizer.encode_chat(chat[:2])
    assert tokenizer.encode_chat(chat)[: len(before) + len(made)] == [*before, *made]
