"""What of a message is reasoning, and what only speaks of it."""

import pytest

from conversations import reasoning
from conversations.context import PastMessage


@pytest.mark.parametrize(
    ("text", "opened", "said"),
    [
        ("<think>Hm.</think>\n\nYes.", False, "Yes."),
        ("\n<Thinking mode='x'>\nHm\n</Thinking>\nYes.", False, "Yes."),
        ("<think>a</think>\n<think>b</think>Yes.", False, "Yes."),
        ("<think>It stops amid", False, ""),
        ("Hm.\n</think>\n\nYes.", True, "Yes."),
        ("It stops amid", True, ""),
        ("Hm.</think>\n<think>And hm.</think>Yes.", True, "Yes."),
        ("Hm.</think>Tags end with </think>, always.", True, "Tags end with </think>, always."),
        (
            "Models write `<think>` first. Then call json.loads.",
            False,
            "Models write `<think>` first. Then call json.loads.",
        ),
        ("The word is kumquat. Look for `</think>`.", False, "The word is kumquat. Look for `</think>`."),
        ("Plain.", False, "Plain."),
        ("<thinkers>are no tag</thinkers>", False, "<thinkers>are no tag</thinkers>"),
        ("<think-box>is none</think-box>", False, "<think-box>is none</think-box>"),
    ],
)
def test_reasoning_is_what_an_answer_begins_with(text: str, opened: bool, said: str) -> None:
    assert reasoning.left_out(text, opened=opened) == said


def test_what_people_write_stays_as_it_is() -> None:
    content = "<think> is a tag. My parser fails on </think>, and what now?"
    assert reasoning.said(PastMessage(seq=1, role="user", content=content, token_count=1)) == content
    answer = PastMessage(seq=2, role="assistant", content=content, token_count=1)
    assert reasoning.said(answer) == ", and what now?"
