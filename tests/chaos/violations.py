"""What a check reports."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """`rule` is the number of the broken invariant in docs/chaos.md, `subject` the turn and run, or what else it is."""

    rule: int
    subject: str
    words: str

    def __str__(self) -> str:
        return f"rule {self.rule}, {self.subject}: {self.words}"
