"""What the scripted engine must have answered: the text that each token of a turn's whole answer adds."""

from inference.tokenization import ChatTokenizer, ChatTurn
from inference.worker.scripted_answers import Answers, Script
from tests.chaos.plan import Ask


class Expected:
    """Works answers out as the engine does: from the prompt's last message."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._answers = Answers(tokenizer=tokenizer, default=Script())

    def texts(self, ask: Ask) -> tuple[str, ...]:
        """By token, up to the allowed length; empty where a character is not complete yet."""
        prompt = self._tokenizer.encode_chat([ChatTurn("system", "?"), ChatTurn("user", ask.content)])
        ids = self._answers.answer(prompt).ids[: ask.max_output_tokens]
        return tuple(map(self._tokenizer.stream(prompt), ids))
