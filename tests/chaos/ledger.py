"""Checks of what is stored: turns, runs, messages, charges, and the site at rest. Pure functions of a record."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.chaos.records import Played, Record, RunRow, Truth, UsageRow
from tests.chaos.violations import Violation

# By the code of an answer that broke off: how its attempts before the last ended, and how many it may have. The pool's
# own number, unless it is changed, and MAX_DRAINS of inference.runs.
TRIES = {"worker_lost": ("lost", 3), "worker_stopped": ("drained", 50)}
ACTIVE = frozenset({"queued", "streaming"})
# What an answer that shows nothing costs when it broke: nothing.
_FREE = frozenset({"failed", "interrupted"})


def check(record: Record) -> Iterator[Violation]:
    """Everything that the database and the site at rest can tell."""
    yield from _whole_turns(record.truth)
    yield from _accepted_turns(record)
    usage: dict[str, list[UsageRow]] = defaultdict(list)
    for row in record.truth.usage:
        usage[row.run_id].append(row)
    names = {played.run_id: played.name for played in record.played}
    known = {run.id for run in record.truth.runs}
    for run_id in usage.keys() - known:
        yield Violation(rule=1, subject=f"run {run_id}", words="is charged and does not exist")
    begun = {(attempt.run_id, attempt.epoch) for attempt in record.truth.attempts}
    for run in record.truth.runs:
        subject = names.get(run.id, f"run {run.id}")
        yield from _ended(run, subject=subject, deadline_s=record.run_deadline_s)
        yield from _charged(run, usage[run.id], began=(run.id, run.epoch) in begun, subject=subject)
    yield from _attempts(record.truth)
    yield from _at_rest(record.truth)


def _whole_turns(truth: Truth) -> Iterator[Violation]:
    """No half of a turn is stored, and nothing twice."""
    runs = {run.id: run for run in truth.runs}
    roles = Counter((message.turn_id, message.role) for message in truth.messages)
    for (chat, name), count in Counter((turn.chat_id, turn.client_turn_id) for turn in truth.turns).items():
        if count > 1:
            yield Violation(rule=1, subject=f"chat {chat} {name}", words=f"is stored {count} times")
    for turn in truth.turns:
        subject = f"{turn.client_turn_id} (run {turn.run_id})"
        run = runs.get(turn.run_id)
        if run is None:
            yield Violation(rule=9, subject=subject, words="has a turn and no run")
        if roles[turn.id, "user"] != 1:
            yield Violation(rule=9, subject=subject, words=f"has {roles[turn.id, 'user']} user messages")
        answers = [one for one in truth.messages if one.turn_id == turn.id and one.role == "assistant"]
        over = run is not None and run.status not in ACTIVE
        if len(answers) != over:
            words = f"has {len(answers)} answers and its run is {run.status if run else 'missing'}"
            yield Violation(rule=1 if len(answers) > 1 else 9, subject=subject, words=words)
        for answer in answers:
            if run is not None and (answer.id, answer.run_id, answer.hidden) != (run.message_id, run.id, False):
                yield Violation(rule=9, subject=subject, words=f"has an answer {answer.id} that is not its run's")
    turns = {turn.id for turn in truth.turns}
    for message in truth.messages:
        if message.turn_id not in turns:
            yield Violation(rule=9, subject=f"message {message.id}", words="belongs to no turn")
    answers_of_turns = {run.id for run in truth.runs if run.kind == "turn"}
    for run_id in answers_of_turns - {turn.run_id for turn in truth.turns}:
        yield Violation(rule=9, subject=f"run {run_id}", words="answers no turn")
    for (run_id, epoch), count in Counter((row.run_id, row.epoch) for row in truth.usage).items():
        if count > 1:
            yield Violation(rule=1, subject=f"run {run_id}", words=f"epoch {epoch} is charged {count} times")


def _accepted_turns(record: Record) -> Iterator[Violation]:
    """What clients were told is what is stored."""
    stored = {(turn.chat_id, turn.client_turn_id): turn for turn in record.truth.turns}
    runs = {run.id: run for run in record.truth.runs}
    for played in record.played:
        turn = stored.get((played.chat_id, played.ask.turn_id))
        for answer in played.accepted:
            if turn is None or answer["run"]["id"] != turn.run_id:
                words = f"run {answer['run']['id']} was accepted, stored is {turn.run_id if turn else 'nothing'}"
                yield Violation(rule=1, subject=played.name, words=words)
        if played.created > 1:
            yield Violation(rule=1, subject=played.name, words=f"was accepted as new {played.created} times")
        if len({answer["message"]["id"] for answer in played.accepted}) > 1:
            yield Violation(rule=1, subject=played.name, words="its repeats name different messages")
        run = None if turn is None else runs.get(turn.run_id)
        if run is not None:
            yield from _answer(played, run, record)


def _answer(played: Played, run: RunRow, record: Record) -> Iterator[Violation]:
    """The run ended as its plan and the faults allow, with the text of as many tokens as are charged."""
    question = [one for one in record.truth.messages if one.run_id == run.id and one.role == "user"]
    if [one.content for one in question] != [played.ask.content]:
        yield Violation(rule=9, subject=played.name, words="its message is not what was sent")
    if played.final_run is not None:
        told = played.final_run["usage"]
        if (told["prompt"], told["output"]) != (run.prompt_tokens, run.output_tokens):
            words = f"the API tells of usage {told}, stored are {run.prompt_tokens} and {run.output_tokens}"
            yield Violation(rule=6, subject=played.name, words=words)
    allowed = {"done"}
    if played.expected is not None and played.ask.fail_after is not None:
        reaches = played.ask.fail_after < len(played.expected)
        allowed = {"failed"} if reaches else {"done"}
    if played.cancelled:
        allowed.add("cancelled")
    if run.status == "interrupted" and _may_be_interrupted(run, record):
        allowed.add("interrupted")
    if run.status not in allowed | ACTIVE:
        yield Violation(rule=4, subject=played.name, words=f"is {run.status} ({run.error_code}) without a cause")
    if played.expected is None or run.status in ACTIVE:
        return
    answer = next((one.content for one in record.truth.messages if one.id == run.message_id), "")
    if run.status == "done" and run.output_tokens != len(played.expected):
        words = f"has {run.output_tokens} tokens, the script {len(played.expected)}"
        yield Violation(rule=6, subject=played.name, words=words)
    if answer != "".join(played.expected[: run.output_tokens]):
        words = f"its {run.output_tokens} tokens are stored as {answer!r:.200}"
        yield Violation(rule=6, subject=played.name, words=words)


def _may_be_interrupted(run: RunRow, record: Record) -> bool:
    """Only an answer that was begun as often as may be, and broke off for the same cause each time, is given up."""
    if run.error_code not in TRIES:
        return False
    outcome, bound = TRIES[run.error_code]
    attempts = [one for one in record.truth.attempts if one.run_id == run.id and one.epoch >= run.base_epoch]
    broken = sum(one.outcome == outcome and one.epoch < run.epoch for one in attempts)
    return broken + 1 >= bound


def _ended(run: RunRow, *, subject: str, deadline_s: float) -> Iterator[Violation]:
    if run.status in ACTIVE:
        yield Violation(rule=4, subject=subject, words=f"never ended: {run.status} at epoch {run.epoch}")
    elif run.total_s is not None and run.total_s > deadline_s:
        yield Violation(rule=4, subject=subject, words=f"took {run.total_s:.1f} s, beyond its {deadline_s:g} s")


def _charged(run: RunRow, rows: list[UsageRow], *, began: bool, subject: str) -> Iterator[Violation]:
    """Once by the rule: the prompt on the last row alone, each token of the answer in one row."""
    if run.status in ACTIVE:
        return
    present = [row for row in rows if row.admission_id == run.admission_id]
    last = [row for row in present if row.reason != "lost"]
    if len(last) != (began or run.output_tokens > 0):
        yield Violation(rule=1, subject=subject, words=f"{run.status} with {len(last)} final charges")
    output = sum(row.output_tokens for row in present)
    if output != run.output_tokens:
        words = f"its charges hold {output} output tokens, the answer {run.output_tokens}"
        yield Violation(rule=6, subject=subject, words=words)
    free = not last or (run.status in _FREE and not run.output_tokens)
    prompt, due = sum(row.prompt_tokens for row in present), 0 if free else run.prompt_tokens
    if prompt != due or any(row.prompt_tokens for row in rows if row.reason == "lost"):
        yield Violation(rule=1, subject=subject, words=f"{prompt} prompt tokens are charged, {due} are due")
    for admission, count in Counter(row.admission_id for row in rows if row.reason != "lost").items():
        if count > 1:
            yield Violation(rule=1, subject=subject, words=f"admission {admission} ended {count} times")
    payer = run.owner_id if run.kind == "turn" else ""
    for row in rows:
        if row.user_id != payer or row.epoch > run.epoch:
            yield Violation(rule=1, subject=subject, words=f"a charge of epoch {row.epoch} is not this run's")


def _attempts(truth: Truth) -> Iterator[Violation]:
    """Each try is over, and the ledger has what it made."""
    rows = {(row.run_id, row.epoch): row for row in truth.usage}
    active = {run.id for run in truth.runs if run.status in ACTIVE}
    for attempt in truth.attempts:
        subject = f"run {attempt.run_id} epoch {attempt.epoch}"
        row = rows.get((attempt.run_id, attempt.epoch))
        if attempt.run_id in active:
            continue
        if attempt.outcome == "running":
            yield Violation(rule=4, subject=subject, words="the attempt never ended")
        elif row is None or row.output_tokens != attempt.output_tokens:
            charged = "nothing" if row is None else f"{row.output_tokens} tokens"
            words = f"made {attempt.output_tokens} tokens, {charged} in the ledger"
            yield Violation(rule=6, subject=subject, words=words)


def _at_rest(truth: Truth) -> Iterator[Violation]:
    rest = truth.rest

    def broken(rule: int, words: str) -> Violation:
        return Violation(rule=rule, subject="the site at rest", words=words)

    for hold in rest.reservations:
        yield broken(6, f"a reservation is left: {hold}")
    if rest.holders and not rest.reservations:
        yield broken(6, f"users without a reservation count as holders: {', '.join(rest.holders)}")
    for name, left in (("waits in the queue", rest.queued), ("is leased", rest.leases)):
        for run in left:
            yield broken(4, f"{run} still {name}")
    for words, count in (
        ("messages are in the broker's queues", rest.tickets),
        ("sequences run in the engines", rest.running),
        ("sequences wait in the engines", rest.waiting),
    ):
        if count:
            yield broken(5, f"{count} {words}")
    if rest.workers != 2:
        yield broken(4, f"{rest.workers} workers are alive, not 2")
    spent: Counter[str] = Counter()
    for row in truth.usage:
        spent[row.user_id] += row.prompt_tokens + row.output_tokens
    for user, used in rest.used.items():
        if used != spent[user]:
            yield broken(6, f"user {user} has used {used} tokens in Redis, {spent[user]} in the ledger")
