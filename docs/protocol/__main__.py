"""The command line: `python -m docs.protocol [CASE …]`, each case by its name or by the rule that it leaves out.

Without names, everything. Exits 1 when the whole protocol goes wrong anywhere, or a rule turns out not to be needed.
"""

import sys
import time
from multiprocessing import Pool

from docs.protocol.cases import WHOLE, WITHOUT
from docs.protocol.search import Finding, search

PROCESSES = 2


def _search(name: str) -> tuple[str, Finding]:
    return name, search(WHOLE[name] if name in WHOLE else WITHOUT[name])


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in WHOLE and name not in WITHOUT]
    if unknown:
        print(f"no such case: {', '.join(unknown)}\nknown: {', '.join([*WHOLE, *WITHOUT])}", file=sys.stderr)
        return 2
    began = time.monotonic()
    states = unexpected = 0
    with Pool(PROCESSES, maxtasksperchild=1) as pool:
        for name, finding in pool.imap_unordered(_search, names or [*WHOLE, *WITHOUT]):
            is_expected = bool(finding.wrong) == (name in WITHOUT)
            states += finding.states
            unexpected += not is_expected
            print(_line(name, finding, is_expected=is_expected), flush=True)
            if finding.wrong and (names or not is_expected):
                print(
                    "".join(f"    {number:2}. {step}\n" for number, step in enumerate(finding.trace, start=1)), end=""
                )
    print(f"{states:,} states, {time.monotonic() - began:.0f} s, {unexpected} unexpected")
    return 1 if unexpected else 0


def _line(name: str, finding: Finding, *, is_expected: bool) -> str:
    if name in WITHOUT:
        title = f"without {name}"
        verdict = f"fails, as it must: {finding.wrong}" if is_expected else "NOT NEEDED"
    else:
        title = name
        ends = ", ".join(f"{count} {end}" for end, count in sorted(finding.ends.items()))
        verdict = f"holds; at rest: {ends}" if is_expected else f"WRONG: {finding.wrong}"
    return f"{title:24} {finding.states:9,} states {finding.seconds:6.1f} s  {verdict}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
