"""The cases that are searched: the whole protocol within bounds that together cover it, and each rule left out."""

from dataclasses import replace

from docs.protocol.case import Case
from docs.protocol.rules import RULES

# One turn of two tokens, two workers.
ONE = Case()
# Two turns of one token, where budget and concurrency admit one at a time.
TWO = Case(turns=2, tokens=1, reserve=1, budget=1, concurrency=1, workers=1)
# A turn that is cancelled and retried.
LIFE = replace(ONE, cancels=1, retries=1)


def _kinds(*kinds: str) -> frozenset[str]:
    return frozenset(kinds)


# What may happen: a process dies (crash); Redis forgets everything, or restarts from its disk, which reads the same
# (wipe), or is away for longer than an answer waits for it (down); a reply is lost, and the command under way (lost);
# LOAD is sent once more, at any time (resend); a lease lapses although its worker lives (lease), an unconfirmed hold
# although its request does (pend); a ticket is lost or doubled (ticket); an acceptance fails (refuse) or is not
# confirmed (unsure); the engine fails (engine); a worker is told to stop (drain).
ANY = _kinds("crash", "wipe", "down", "lost", "lease", "pend", "ticket", "refuse", "unsure", "engine", "drain")

# The longest first: two processes then end at about the same time.
WHOLE: dict[str, Case] = {
    "cancel, two faults": replace(ONE, cancels=1, faults=2, kinds=_kinds("crash", "wipe", "lease", "lost")),
    "budget, two faults": replace(TWO, faults=2, kinds=_kinds("crash", "wipe", "pend")),
    "life, Redis": replace(LIFE, kinds=_kinds("wipe", "down")),
    "budget, unknown": replace(TWO, turns=1, posts=2, cold=True, faults=2, kinds=_kinds("wipe", "resend")),
    "turn, two faults": replace(ONE, faults=2, kinds=_kinds("crash", "wipe", "down", "lost", "lease", "drain")),
    "life, no fault": replace(LIFE, posts=2, deadline=True, faults=0),
    "life, slow": replace(LIFE, kinds=_kinds("lease", "pend", "ticket")),
    "life, deaths": replace(LIFE, kinds=_kinds("crash", "drain", "engine")),
    "life, connections": replace(LIFE, kinds=_kinds("lost", "refuse", "unsure")),
    "follower": replace(ONE, cancels=1, workers=1, follows=True, kinds=ANY),
    "two reapers": replace(ONE, tokens=1, reserve=1, workers=1, cancels=1, reapers=2, kinds=ANY),
    "budget, retry": replace(TWO, budget=2, cancels=1, retries=1, faults=0),
    "follower, retry": replace(LIFE, workers=1, follows=True, faults=0),
    "budget, Redis": replace(TWO, kinds=_kinds("wipe", "crash", "down")),
    "repeated POST": replace(ONE, tokens=1, reserve=1, budget=1, concurrency=1, workers=1, posts=2, kinds=ANY),
    "budget, slow": replace(TWO, kinds=_kinds("lease", "pend", "ticket", "refuse", "unsure")),
}

# The smallest case in which each rule matters.
_NEEDED_IN: dict[str, Case] = {
    "dup_lookup": replace(TWO, turns=1, posts=2, faults=0),
    "db_expiry": replace(TWO, kinds=_kinds("crash")),
    "gen_fence": replace(TWO, kinds=_kinds("pend")),
    "adm_id": replace(TWO, cancels=1, retries=1, budget=2, faults=0),
    "shared": replace(TWO, posts=2, kinds=_kinds("refuse")),
    "confirmed": replace(TWO, posts=2, kinds=_kinds("refuse")),
    "keep_unsure": replace(TWO, kinds=_kinds("unsure")),
    "no_duel": replace(TWO, kinds=_kinds("wipe")),
    "load_inc": replace(TWO, cold=True, faults=2, kinds=_kinds("wipe", "resend")),
    "rebuild_live": replace(ONE, faults=2, kinds=_kinds("lease", "wipe")),
    "db_epoch": replace(ONE, faults=2, kinds=_kinds("lease", "wipe")),
    "seal": replace(ONE, kinds=_kinds("lease")),
    "drain_seal": replace(ONE, faults=2, kinds=_kinds("drain", "lost")),
    "seal_open": replace(ONE, faults=2, kinds=_kinds("lease", "lost")),
    "open_compare": replace(ONE, faults=2, kinds=_kinds("crash", "wipe")),
    "reset_base": replace(LIFE, kinds=_kinds("lease")),
    "carry_db": replace(ONE, faults=2, kinds=_kinds("crash", "wipe")),
    "inc": replace(ONE, faults=2, kinds=_kinds("lease", "roll")),
    "open_inc": replace(ONE, cancels=1, faults=2, kinds=_kinds("lease", "wipe")),
    "cas_inc": replace(ONE, faults=2, kinds=_kinds("lease", "wipe")),
    "append_missing": replace(ONE, faults=2, kinds=_kinds("lease", "wipe")),
    "close_epoch": replace(LIFE, faults=0),
    "flush_first": replace(ONE, faults=0),
    "own_reopen": replace(ONE, kinds=_kinds("lost")),
    "no_resend": replace(ONE, kinds=_kinds("lost")),
    "show_anew": replace(ONE, kinds=_kinds("lost")),
    "numbers": replace(ONE, kinds=_kinds("lost")),
    "skip_numbers": replace(ONE, kinds=_kinds("lost")),
    "cancel_owner": replace(ONE, cancels=1, faults=0),
    "cancel_reap": replace(ONE, cancels=1, kinds=_kinds("crash")),
    "retry_hides": replace(LIFE, faults=0),
    "last_id": replace(ONE, follows=True, kinds=_kinds("wipe")),
    "old_term": replace(LIFE, follows=True, faults=0),
    "follower_db": replace(ONE, follows=True, kinds=_kinds("wipe")),
    "rule_queue": replace(ONE, kinds=_kinds("crash")),
    "rule_ticket": replace(ONE, kinds=_kinds("ticket")),
    "rule_lease": replace(ONE, kinds=_kinds("crash")),
    "rule_settle": replace(ONE, kinds=_kinds("crash")),
    "rule_settle_old": replace(LIFE, tokens=1, reserve=1, workers=1, kinds=_kinds("wipe")),
    "rule_close": replace(ONE, kinds=_kinds("crash")),
    "rule_rebuild": replace(TWO, kinds=_kinds("wipe")),
}
WITHOUT: dict[str, Case] = {rule: replace(_NEEDED_IN[rule], without=rule) for rule in RULES}
