"""How long an answer may go on without a follower, and what does not count as being gone."""

from inference.worker.audience import GRACE_S, Absence, Unwatched

STOP = Unwatched(seconds=60)
SHORTEN = Unwatched(tokens=100)


class Answer:
    """One answer that is looked at once a second; `pace` tokens are made between two looks."""

    def __init__(self, allowed: Unwatched, *, pace: int = 10) -> None:
        self.absence = Absence(allowed=allowed)
        self.pace = pace
        self.tokens = 0
        self.now = 1000.0
        self.look(1)

    def look(self, followers: int | None, *, after_s: float = 1.0) -> bool:
        self.now += after_s
        self.tokens += round(self.pace * after_s)
        self.absence.look(followers=followers, tokens=self.tokens, now=self.now)
        return self.is_over

    @property
    def is_over(self) -> bool:
        return self.absence.is_over(tokens=self.tokens)

    def seconds_alone(self) -> int:
        """How many seconds it goes on from the first look that finds nobody."""
        self.look(0)
        return next(second for second in range(1, 1000) if self.look(0))


def test_a_stopped_answer_ends_after_its_seconds_alone() -> None:
    assert Answer(STOP).seconds_alone() == 60


def test_a_bound_shorter_than_the_grace_waits_for_the_grace() -> None:
    assert Answer(Unwatched(seconds=1)).seconds_alone() == GRACE_S
    assert Answer(Unwatched(tokens=1)).seconds_alone() == GRACE_S


def test_a_shortened_answer_ends_at_its_token_counted_from_when_the_last_follower_went() -> None:
    answer = Answer(SHORTEN, pace=4)
    assert answer.seconds_alone() == 25
    answer.tokens -= 1
    assert not answer.is_over, "not a token sooner"


def test_a_slow_answer_is_not_ended_by_time_where_tokens_count() -> None:
    answer = Answer(SHORTEN, pace=0)
    assert not any(answer.look(0) for _ in range(1000))


def test_a_follower_who_is_back_within_the_grace_starts_both_bounds_anew() -> None:
    for allowed in (Unwatched(seconds=1), Unwatched(tokens=1)):
        answer = Answer(allowed)
        assert not any(answer.look(0) for _ in range(int(GRACE_S)))
        assert not answer.look(1)
        assert answer.seconds_alone() == GRACE_S


def test_one_of_several_followers_is_enough() -> None:
    answer = Answer(STOP)
    assert not any(answer.look(count) for count in (3, 2, 1) * 100)


def test_while_redis_tells_nothing_nobody_counts_as_gone() -> None:
    answer = Answer(STOP)
    assert not any(answer.look(0) for _ in range(59))
    assert not answer.look(None)
    assert answer.seconds_alone() == 60


def test_a_process_that_was_stopped_passes_no_verdict_about_that_time() -> None:
    answer = Answer(STOP)
    answer.look(0)
    assert not answer.look(0, after_s=3600)


def test_an_answer_that_may_finish_is_never_over() -> None:
    answer = Answer(Unwatched())
    assert not Unwatched().is_bounded
    assert not any(answer.look(0) for _ in range(1000))
