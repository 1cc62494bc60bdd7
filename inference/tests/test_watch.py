"""Something stands still only as far as somebody looked."""

from inference.worker.watch import Watch


def looks(watch: Watch, *, at: int, seconds: float, since: float, every: float = 0.25) -> list[bool]:
    count = round(seconds / every)
    return [watch.stands_still(at=at, now=since + every * number) for number in range(count + 1)]


def test_what_does_not_move_for_longer_than_the_bound_stands_still() -> None:
    watch = Watch(bound_s=2)
    verdicts = looks(watch, at=7, seconds=3, since=100)
    assert verdicts == [False] * 9 + [True] * 4


def test_what_moves_never_stands_still() -> None:
    watch = Watch(bound_s=2)
    for number in range(10):
        assert looks(watch, at=number, seconds=1.5, since=2.0 * number) == [False] * 7


def test_a_process_that_was_stopped_meanwhile_does_not_judge_that_time() -> None:
    watch = Watch(bound_s=2)
    looks(watch, at=7, seconds=1, since=100)
    assert not watch.stands_still(at=7, now=5000)
    assert looks(watch, at=7, seconds=1, since=5000.25)[-1]


def test_it_is_news_once_for_every_standstill() -> None:
    watch = Watch(bound_s=1)
    news = []
    for at, since in ((1, 0.0), (2, 10.0)):
        for number in range(12):
            watch.stands_still(at=at, now=since + number / 4)
            news.append(watch.is_news)
    assert news.count(True) == 2


def test_where_there_is_nothing_to_do_nothing_stands_still() -> None:
    watch = Watch(bound_s=1)
    for second in range(10):
        looks(watch, at=7, seconds=0.75, since=float(second))
        watch.reset()
    assert not watch.stands_still(at=7, now=10.25)
