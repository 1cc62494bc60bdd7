"""The rules of the protocol, one sentence each. Each is needed: without it, a case in `cases.py` goes wrong."""

RULES: dict[str, str] = {
    # Admission and acceptance.
    "dup_lookup": "a repeated POST looks its turn up in the database before admission and again after a refusal",
    "db_expiry": "an unconfirmed hold is dropped only by a rebuild, which the database fences; no TTL in Redis",
    "gen_fence": "the accepting transaction checks the account generation that the admission was made under",
    "adm_id": "holds carry a unique admission id; SETTLE and RELEASE name it, not the turn",
    "shared": "a hold that a second request of the turn was given too is not released by either",
    "confirmed": "a hold that ENQUEUE confirmed is not released",
    "keep_unsure": "a request whose commit was not confirmed keeps its hold",
    "no_duel": "a web process rebuilds only an absent account; a stale one it waits for",
    "load_inc": "LOAD is bound to the incarnation known before the rebuild's transaction",
    "rebuild_live": "the rebuild leaves the rows of a running admission out of `used`: its hold covers them",
    # Epochs and streams.
    "db_epoch": "the epoch lives in the database and is raised there; Redis never invents one",
    "seal": "published tokens are read by SEAL, which first refuses the old epoch",
    "drain_seal": "a worker that hands over seals its own epoch first: what it sent may still be under way",
    "seal_open": "a sealed or closed stream refuses OPEN, too, of its own epoch",
    "open_compare": "OPEN says continues:true only if the stream holds exactly the carry",
    "reset_base": "entries older than the first epoch of the present admission never count",
    "carry_db": "the carry is stored in the database by the requeue, not looked up in the stream later",
    "inc": "what another incarnation of Redis wrote counts as absent",
    "open_inc": "OPEN is bound to the incarnation under which the database last confirmed the owner",
    "cas_inc": "a take-over compares the run's stream incarnation, read before SEAL",
    "append_missing": "APPEND to an absent stream is refused and has the worker verify its ownership",
    "close_epoch": "CLOSE is refused once the stream is at a newer epoch",
    "flush_first": "the worker publishes every token before it ends the run",
    # A lost reply or a broken connection, in one incarnation.
    "own_reopen": "OPEN accepts an epoch's own open stream again",
    "no_resend": "a command whose reply is missing is not sent again: the stream is opened anew",
    "show_anew": "a stream opened anew shows the whole text and says continues:false",
    "numbers": "a stream takes an entry only above the last number of its epoch",
    "skip_numbers": "after a lost OPEN the next one is numbered above all that the lost one may have written",
    # Cancel and retry.
    "cancel_owner": "a cancel only flags a streaming run; its owner, or the reaper after SEAL, ends it",
    "cancel_reap": "a take-over ends a flagged run as cancelled instead of queueing it",
    "retry_hides": "the retry hides the old answer",
    # Followers.
    "last_id": "terminal events and continuing `started` name the last content id; who lacks it fetches again",
    "old_term": "a terminal event older than the database's epoch at connect does not end a follower",
    "follower_db": "a follower that sees nothing new asks the database; if that calls the run over, it fetches",
    # The reaper.
    "rule_queue": "R1: queued in the database, not in Redis: ENQUEUE",
    "rule_ticket": "R6: the queue is not empty and there is no ticket: ticket",
    "rule_lease": "R2: streaming and the lease is gone: take over",
    "rule_settle": "R3: the hold of a run that is over: SETTLE",
    "rule_settle_old": "R3: a confirmed hold that is not its run's present admission: SETTLE",
    "rule_close": "R4: the open stream of a run that is over: CLOSE",
    "rule_rebuild": "R5: the account is absent or behind the database: rebuild",
}
