"""A case: the bounds of one search, the faults that may happen in it, and the state that it begins with."""

from dataclasses import dataclass

from docs.protocol.state import Account, Reaper, State, Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Bounds of one search, and the rule that is left out, if any. Sizes in tokens; `faults` of the `kinds` at most.

    `cancels` and `retries` are those of the first turn, `posts` of each.
    """

    turns: int = 1
    tokens: int = 2
    reserve: int = 2
    budget: int = 9
    concurrency: int = 2
    max_epochs: int = 2
    posts: int = 1
    cancels: int = 0
    retries: int = 0
    workers: int = 2
    reapers: int = 1
    faults: int = 1
    kinds: frozenset[str] = frozenset()
    follows: bool = False
    deadline: bool = False
    cold: bool = False
    without: str = ""

    def keeps(self, rule: str) -> bool:
        return rule != self.without

    def may(self, kind: str, s: State) -> bool:
        """Whether this kind of fault may still happen."""
        return s.faults > 0 and kind in self.kinds


def initial(case: Case) -> State:
    return State(
        runs=(None,) * case.turns,
        ledger=(),
        generation=1,
        account=None if case.cold else Account(1, 0, ()),
        queue=(),
        streams=(None,) * case.turns,
        tickets=0,
        incarnation=0,
        snapshot=None,
        web=(),
        workers=(Worker(),) * case.workers,
        reapers=(Reaper(),) * case.reapers,
        late=(),
        clients=((case.posts, case.cancels, case.retries), *((case.posts, 0, 0),) * (case.turns - 1)),
        faults=case.faults,
        follower=None,
        next_admission=1,
        counted=(0,) * case.turns,
        wrong="",
    )
