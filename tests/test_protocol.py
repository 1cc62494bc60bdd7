"""The short form of the turn protocol's model: nothing goes wrong in the protocol, and something without any rule."""

from dataclasses import replace
from pathlib import Path

import pytest

from docs.protocol.case import Case
from docs.protocol.cases import ANY, LIFE, TWO, WHOLE, WITHOUT
from docs.protocol.rules import RULES
from docs.protocol.search import search

PAGE = Path(__file__).resolve().parent.parent / "docs" / "protocol" / "README.md"
# Rules whose smallest case takes more than a second.
SLOW = {
    "carry_db",
    "follower_db",
    "no_duel",
    "open_compare",
    "rebuild_live",
    "reset_base",
    "rule_close",
    "rule_settle",
    "rule_settle_old",
}
SHORT = {
    "a turn's life, any fault": replace(LIFE, tokens=1, reserve=1, workers=1, retries=0, kinds=ANY),
    "two turns, one budget": replace(TWO, kinds=ANY - {"wipe"}),
}


@pytest.mark.parametrize("case", SHORT.values(), ids=SHORT.keys())
def test_the_whole_protocol_holds_within_small_bounds(case: Case) -> None:
    finding = search(case)
    assert finding.wrong == "", "\n".join(finding.trace)
    assert finding.ends["done"]


@pytest.mark.parametrize("rule", sorted(set(RULES) - SLOW))
def test_without_any_of_its_rules_the_protocol_goes_wrong(rule: str) -> None:
    finding = search(WITHOUT[rule])
    assert finding.wrong
    assert finding.trace


def test_every_rule_that_is_left_out_somewhere_is_left_out_in_one_case_only() -> None:
    assert {case.without for case in WITHOUT.values()} == set(RULES)
    assert {case.without for case in WHOLE.values()} == {""}


def test_the_page_shows_a_counterexample_as_it_is_found() -> None:
    finding = search(WITHOUT["seal"])
    shown = PAGE.read_text(encoding="utf-8")
    assert finding.wrong in shown
    assert all(f"{number}. {step}\n" in shown for number, step in enumerate(finding.trace, start=1))
