"""Turns chats into prompt token ids, the same way everywhere.

Every count and every prompt comes from here, so that what is checked against the window is what the engine
gets. Web processes use it too: no transformers, no vllm.
"""

import contextlib
import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import snapshot_download
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import DecodeStream

from inference import token_ids
from inference.errors import ChatTemplateRefused

ROLES = frozenset({"system", "user", "assistant", "tool"})
# What a tokenizer needs from a model's folder; weights are left alone.
FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
_PRIVATE_USE = range(0xF0000, 0xFFFFE)


class TokenizerUnavailable(Exception):
    """The model's tokenizer or chat template cannot be had; `reason` says what is missing."""

    def __init__(self, *, model: str, reason: str) -> None:
        super().__init__(f"No tokenizer for model {model!r}: {reason}")
        self.model = model
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One message of a prompt. The role goes into the template raw, so it must be one of `ROLES`.

    `token_ids` are those that an engine made the content of, packed (little-endian uint32), where they are known: text
    that is tokenised again may get others, and the engine then has the rest of the chat in its prefix cache in vain.
    """

    role: str
    content: str
    token_ids: bytes = b""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"unknown chat role {self.role!r}")


# What a prompt's text is with these contents in its messages.
_Render = Callable[[Sequence[str]], str]
# How templates of reasoning models are asked for none, or little: each knows one of these, and ignores the others.
_THINKING_OFF: dict[str, object] = {"enable_thinking": False, "thinking": False}
_LITTLE = "low"
_WITHOUT_THINKING = (
    _THINKING_OFF | {"reasoning_effort": _LITTLE},
    _THINKING_OFF | {"reasoning_effort": "none"},
    _THINKING_OFF,
)
# Where a chat begins, whatever is said in it.
_HEAD = (ChatTurn("system", "s"), ChatTurn("user", "u"))


class ChatTokenizer:
    """One model's tokenizer and chat template. Thread-safe: nothing changes after construction but what is found out.

    `template_revision` and `tokenizer_revision` are digests of the two.

    Contents are data: a special token spelt out in a message ("<|im_end|>") becomes ordinary text, so no
    user can end a turn or open a system turn. For every other content the ids equal those of
    transformers' `apply_chat_template`.
    """

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        template: str,
        special_tokens: Mapping[str, str],
    ) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        added = tokenizer.get_added_tokens_decoder()
        specials = sorted(token.content for token in added.values() if token.special and token.content)
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._template = _compile(template)
        self._template_arguments = dict(special_tokens)
        self._tokenizer = tokenizer
        # `encode_special_tokens` is a mode of the whole object, not of a call: two objects, two modes.
        spelt = tokenizer.to_str()
        self.tokenizer_revision = _digest(spelt)
        self._literal = Tokenizer.from_str(spelt)
        self._literal.encode_special_tokens = True
        self._mark = f"\N{REPLACEMENT CHARACTER}{secrets.token_hex(16)}\N{REPLACEMENT CHARACTER}"
        for one in (self._tokenizer, self._literal):
            one.add_tokens([AddedToken(self._mark, special=False, normalized=False)])
        mark_id = self._literal.token_to_id(self._mark)
        assert mark_id is not None  # it was just added
        self._mark_id: int = mark_id
        self.template_revision = _digest(template)
        # Found out with the first chat that goes on: None = not yet, empty = prompts of this template do not.
        self._head: tuple[int, ...] | None = None
        self._edges = sorted({edge for token in specials for edge in (token[0], token[-1])})
        self._hazard = _hazard(specials)

    def encode_chat(
        self, messages: Sequence[ChatTurn], *, add_generation_prompt: bool = True, thinking: bool = True
    ) -> list[int]:
        """The prompt's token ids. Raises ChatTemplateRefused.

        Without `thinking`, a template that can ask for an answer without reasoning, or with little, does so.
        Contents whose own ids are known get those where the prompt's text stays the same with them: the prompt of a
        chat's next turn then begins with the last prompt and the answer's ids. The others are tokenised.
        """
        asked = {} if thinking else self._without_thinking
        return self._encode_with({"add_generation_prompt": add_generation_prompt, **asked}, messages)

    def _encode_with(self, arguments: Mapping[str, object], messages: Sequence[ChatTurn]) -> list[int]:
        render = partial(self._render, messages, arguments)
        contents = [message.content for message in messages]
        known = {
            number: token_ids.unpack(message.token_ids)
            for number, message in enumerate(messages)
            if message.token_ids and message.content
        }
        # An engine may make a special token amid an answer, which no text shows: it must not get into a prompt.
        known = {number: ids for number, ids in known.items() if self.special_ids.isdisjoint(ids)}
        if known:
            return self._encode_spliced(render, contents, known)
        return self._encode_contents(render, contents, {})

    @cached_property
    def _without_thinking(self) -> Mapping[str, object]:
        """How the template is asked for no reasoning, or little: some refuse a value that others know."""
        for arguments in _WITHOUT_THINKING:
            with contextlib.suppress(ChatTemplateRefused):
                self._encode_with({"add_generation_prompt": True, **arguments}, _HEAD)
                return arguments
        return {}

    @cached_property
    def has_thinking_switch(self) -> bool:
        """Whether the template can ask for an answer without reasoning; to ask for little is no switch."""
        asked = {name: value for name, value in self._without_thinking.items() if value != _LITTLE}
        try:
            return self._encode_with({"add_generation_prompt": True, **asked}, _HEAD) != self.encode_chat(_HEAD)
        except ChatTemplateRefused:
            return False

    @cached_property
    def drops_reasoning(self) -> bool:
        """Whether the template leaves the reasoning of older answers out of prompts."""
        answer = ChatTurn("assistant", "<think>\nzqx\n</think>\n\nYes.")
        try:
            return "zqx" not in self.spell(self.encode_chat([*_HEAD, answer, ChatTurn("user", "v")]))
        except ChatTemplateRefused:
            return False

    def extend_chat(self, prompt_ids: Sequence[int], *, answer: ChatTurn, new: ChatTurn) -> list[int] | None:
        """The prompt of a chat's next turn, made of the last turn's prompt, its answer and the new message.

        What `encode_chat` makes of the whole chat, without the whole chat: about a millisecond, however long it is.
        None where the template says older messages otherwise once a newer one follows, or text would merge into one
        token across the seam: encode the whole chat then. Raises ChatTemplateRefused.
        """
        if self._head is None:
            self._head = tuple(self.encode_chat(_HEAD)) if self._goes_on() else ()
        if not self._head:
            return None
        whole = self.encode_chat([*_HEAD, answer, new])
        if tuple(whole[: len(self._head)]) != self._head:
            # Some templates say which day it is: from now on another one.
            self._head = tuple(self.encode_chat(_HEAD))
        if tuple(whole[: len(self._head)]) != self._head:
            return None
        return [*prompt_ids, *whole[len(self._head) :]]

    def _goes_on(self) -> bool:
        """Whether a chat's next prompt goes on from the last one, tried on messages with edges of all kinds."""
        chat = [ChatTurn("system", "Be kind."), ChatTurn("user", " one\n")]
        try:
            head = self.encode_chat(_HEAD)
            for number, text in enumerate(("two", "\nthree \n", "<think>four</think>\n\n5", " six.")):
                answer, new = ChatTurn("assistant", text), ChatTurn("user", f" {number}\n\n")
                before, after = self.encode_chat(chat), self.encode_chat([*chat, answer, new])
                added = self.encode_chat([*_HEAD, answer, new])
                if added[: len(head)] == head and after != before + added[len(head) :]:
                    return False
                chat += [answer, new]
        except ChatTemplateRefused:
            return False
        return True

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text; special tokens spelt out in it are ordinary characters."""
        ids: list[int] = self._literal.encode(text, add_special_tokens=False).ids
        return ids

    def count(self, text: str) -> int:
        """Tokens of plain text. In a prompt it may take a token more or less where it meets the template."""
        return len(self.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def spell(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included: of a prompt, what its template made."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def stream(self, prompt_ids: Sequence[int] = ()) -> Callable[[int], str]:
        """A function that maps each next token id to the text it completes.

        The text is empty while a character is incomplete. `prompt_ids` are the tokens before the first one.
        """
        decoder = DecodeStream(ids=list(prompt_ids), skip_special_tokens=True)
        return lambda token_id: decoder.step(self._tokenizer, token_id) or ""

    def _render(self, messages: Sequence[ChatTurn], arguments: Mapping[str, object], contents: Sequence[str]) -> str:
        try:
            return self._template.render(
                messages=[
                    {"role": message.role, "content": content}
                    for message, content in zip(messages, contents, strict=True)
                ],
                tools=None,
                documents=None,
                **arguments,
                **self._template_arguments,
            )
        except jinja2.TemplateError as error:
            raise ChatTemplateRefused(str(error)) from error

    def _encode_spliced(self, render: _Render, contents: Sequence[str], known: Mapping[int, list[int]]) -> list[int]:
        """Encode with the known ids of contents, by their place, as far as that changes nothing of the prompt's text.

        A template may trim a content or print something else; ids may be another tokenizer's, or of a text in which
        something was replaced; and pieces may not be what a tokenizer makes of the whole. Costs 11 ms for 4,500 tokens
        of which four in five are known, where encoding them all costs 25.
        """
        text = render(contents)
        while known:
            pieces = render(self._marked(contents, known)).split(self._mark)
            fitting = _verbatim(text, pieces, {number: contents[number] for number in known})
            if len(fitting) == len(known):
                ids = self._encode_contents(render, contents, known)
                if self.spell(ids) == text:
                    return ids
                fitting = {number for number, own in known.items() if self.spell(own) == contents[number]}
                if len(fitting) == len(known):
                    # Some texts no ids are: of characters that the tokenizer does not know, or normalises.
                    plain = self._encode_contents(render, contents, {})
                    return ids if self.spell(ids) == self.spell(plain) else plain
            known = {number: own for number, own in known.items() if number in fitting}
        return self._encode_contents(render, contents, {})

    def _marked(self, contents: Sequence[str], known: Mapping[int, object]) -> list[str]:
        return [self._mark if number in known else content for number, content in enumerate(contents)]

    def _encode_contents(self, render: _Render, contents: Sequence[str], known: Mapping[int, list[int]]) -> list[int]:
        """Encode, with known ids in place of the contents that have some; no content becomes a special token."""
        if any(self._hazard(content) for number, content in enumerate(contents) if number not in known):
            return self._encode_hazardous(render, contents, known)
        text = render(self._marked(contents, known))
        return self._fill(self._tokenizer.encode(text, add_special_tokens=False).ids, known.values())

    def _fill(self, ids: list[int], fillings: Iterable[Sequence[int]]) -> list[int]:
        """Put one filling after the other in the places of the marks."""
        filled: list[int] = []
        position = 0
        for filling in fillings:
            mark = ids.index(self._mark_id, position)
            filled += ids[position:mark]
            filled += filling
            position = mark + 1
        return filled + ids[position:]

    def _encode_hazardous(self, render: _Render, contents: Sequence[str], known: Mapping[int, list[int]]) -> list[int]:
        """Encode a chat whose contents could be read as special tokens.

        1. Render with the first and last character of every special token masked in the contents, so that
           any special token in the result is the template's own.
        2. Put a mark that nobody can guess in the place of each and unmask the rest.
        3. Encode that in the mode that ignores special tokens, then put the template's ids for the marks.

        Cutting only at the template's special tokens, where the tokenizer cuts anyway, keeps merges
        between template and content as they are in an ordinary prompt. Contents with known ids are marks, too.
        """
        masks = _unused_characters(contents, len(self._edges))
        mask = {ord(edge): char for edge, char in zip(self._edges, masks, strict=True)}
        unmask = {ord(char): edge for edge, char in zip(self._edges, masks, strict=True)}
        masked = self._marked([content.translate(mask) for content in contents], known)
        text = render(masked)
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        remaining = iter(known.values())
        fillings: list[Sequence[int]] = []
        pieces: list[str] = []
        position = 0
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id in self.special_ids or token_id == self._mark_id:
                pieces += [text[position:start].translate(unmask), self._mark]
                fillings.append(next(remaining) if token_id == self._mark_id else [token_id])
                position = end
        pieces.append(text[position:].translate(unmask))
        ids = self._fill(self._literal.encode("".join(pieces), add_special_tokens=False).ids, fillings)
        own = [i for filling in fillings for i in filling if i in self.special_ids]
        if [i for i in ids if i in self.special_ids] != own:
            raise ChatTemplateRefused("a message contains a special token that cannot be made plain text")
        return ids


def load(model: str, *, revision: str | None = None) -> ChatTokenizer:
    """The tokenizer of a local model folder, or of a Hugging Face model name at a revision (None: its newest).

    Reads files, and asks the Hugging Face hub for a name: call it once and keep the result.
    Raises TokenizerUnavailable.
    """
    folder = folder_of(model, revision)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise TokenizerUnavailable(model=model, reason=f"{path} does not exist")
    config = _read_json(folder / "tokenizer_config.json", model)
    template = _template_source(folder, config)
    if template is None:
        raise TokenizerUnavailable(model=model, reason="it has no chat template (not a chat model?)")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerUnavailable(model=model, reason=f"{path} is not valid: {error}") from error
    special_tokens = _special_tokens({**_read_json(folder / "special_tokens_map.json", model), **config})
    try:
        return ChatTokenizer(tokenizer=tokenizer, template=template, special_tokens=special_tokens)
    except jinja2.TemplateError as error:
        raise TokenizerUnavailable(model=model, reason=f"its chat template is not valid: {error}") from error


def folder_of(model: str, revision: str | None) -> Path:
    """Where a model's files are, fetched from the Hugging Face hub for a name. Raises TokenizerUnavailable."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise TokenizerUnavailable(model=model, reason="the folder does not exist")
    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=list(FILES)))
    except Exception as error:  # network, HTTP, cache and naming errors share no useful base
        raise TokenizerUnavailable(
            model=model, reason=f"no such folder, and the Hugging Face hub does not give it: {error}"
        ) from error


def _read_json(path: Path, model: str) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerUnavailable(model=model, reason=f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise TokenizerUnavailable(model=model, reason=f"{path} is not a JSON object")
    return content


def _template_source(folder: Path, config: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several named ones
        template = next((t["template"] for t in template if t.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The named tokens a template may print: plain strings or objects with a `content`."""
    found: dict[str, str] = {}
    for name, value in config.items():
        if name.endswith("_token"):
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found[name] = text
    return found


def _hazard(specials: Sequence[str]) -> Callable[[str], object]:
    """A test for contents that could form a special token, alone or with the template's text around them.

    Two characters of a token's start or end anywhere, or one at the content's edge. It may say yes to
    harmless text (a quote starting with ">"): that costs a second encoding and changes no id.
    """
    if not specials:
        return lambda content: None
    inner = sorted({re.escape(part) for token in specials for part in (token[:2], token[-2:])})
    first = "".join(sorted({re.escape(token[0]) for token in specials}))
    last = "".join(sorted({re.escape(token[-1]) for token in specials}))
    return re.compile("|".join([*inner, rf"\A\s*[{last}]", rf"[{first}]\s*\Z"])).search


def _verbatim(text: str, pieces: Sequence[str], contents: Mapping[int, str]) -> set[int]:
    """Which contents, by their numbers, stand unchanged in a text between the pieces around them.

    All of them only where pieces and contents make up the whole text.
    """
    if len(pieces) != len(contents) + 1 or not text.startswith(pieces[0]):
        return set()
    found: set[int] = set()
    position = len(pieces[0])
    for (number, content), piece in zip(contents.items(), pieces[1:], strict=True):
        start = position + len(content)
        if text.startswith(content, position) and text.startswith(piece, start):
            found.add(number)
        else:
            start = text.find(piece, position)
            if start < 0:
                return found
        position = start + len(piece)
    return found if position == len(text) or len(found) < len(contents) else set()


def _unused_characters(contents: Sequence[str], count: int) -> list[str]:
    used = set().union(*contents)
    free = (char for char in map(chr, _PRIVATE_USE) if char not in used)
    chosen = [char for char, _ in zip(free, range(count), strict=False)]
    if len(chosen) < count:
        raise ChatTemplateRefused("the messages use every private character there is")
    return chosen


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks answers for training; in a prompt it is just its body."""

    tags = {"generation"}  # noqa: RUF012  (declared so by jinja2)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _strftime_now(layout: str) -> str:
    return datetime.now().astimezone().strftime(layout)


def _compile(template: str) -> jinja2.Template:
    """Compile with the conventions chat templates are written for; sandboxed, for models are downloads."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(template)
