"""All checks of a chaos run, over its record. The rules' numbers are those of docs/chaos.md."""

from tests.chaos import ledger, streams
from tests.chaos.records import Record
from tests.chaos.violations import Violation


def violations(record: Record) -> list[Violation]:
    """Everything that does not hold, in words."""
    found = [Violation(rule=0, subject="processes", words=words) for words in record.processes]
    for played in record.played:
        found += [Violation(rule=0, subject=played.name, words=words) for words in played.problems]
        found += [Violation(rule=7, subject=played.name, words=words) for words in played.leaks]
        usage = [row for row in record.truth.usage if row.run_id == played.run_id]
        found += streams.check(played, usage)
    found += ledger.check(record)
    return found
