"""One connection for all followers: confirmed subscriptions, signs of life, and what happens when it breaks."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from inference.cell.errors import StoreUnavailable
from inference.cell.link import AsyncCell, AsyncConnector
from inference.cell.subscriber import Subscriber, _Session
from inference.tests.support import ask, connections, hung, restart
from tests import services
from tests.services import Valkey
from tests.waiting import until


class Ear:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.interruptions = 0

    def message(self, payload: str) -> None:
        self.heard.append(payload)

    def interrupted(self) -> None:
        self.interruptions += 1


def channel(name: str = "c") -> "Channel":
    return Channel(name)


class Channel:
    """A channel's name in whatever incarnation answers."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, cell: AsyncCell) -> str:
        return f"{cell.keys.incarnation}:{self.name}"


@pytest_asyncio.fixture
async def connector(valkey: Valkey) -> AsyncIterator[AsyncConnector]:
    opened = AsyncConnector(url=lambda: valkey.url)
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def subscriber(connector: AsyncConnector) -> AsyncIterator[Subscriber]:
    opened = Subscriber(connector=connector)
    yield opened
    await opened.close()


def publish(valkey: Valkey, name: str, payload: str) -> int:
    return int(ask(valkey, lambda client: client.publish(name, payload)))


def tasks() -> int:
    return len(asyncio.all_tasks())


async def test_a_listener_hears_its_channel_and_no_other(valkey: Valkey, subscriber: Subscriber) -> None:
    mine, other = Ear(), Ear()
    _, name = await subscriber.subscribe(channel("mine"), mine)
    await subscriber.subscribe(channel("other"), other)
    assert publish(valkey, name, "a\nb 🙂") == 1
    await until(lambda: mine.heard == ["a\nb 🙂"], what="the message came")
    assert other.heard == []


async def test_a_confirmed_subscription_misses_nothing_published_afterwards(
    valkey: Valkey, subscriber: Subscriber
) -> None:
    for i in range(50):
        ear = Ear()
        _, name = await subscriber.subscribe(channel(f"c{i}"), ear)
        assert publish(valkey, name, "now") == 1


async def test_many_listeners_of_many_channels_share_one_connection(valkey: Valkey, subscriber: Subscriber) -> None:
    ears = [Ear() for _ in range(200)]
    await asyncio.gather(*(subscriber.subscribe(channel(f"c{i % 100}"), ear) for i, ear in enumerate(ears)))
    assert subscriber.channel_count == 100
    assert len(ask(valkey, lambda client: client.pubsub_channels())) == 100
    subscribed = [client for client in ask(valkey, lambda client: client.client_list()) if client["sub"] != "0"]
    assert len(subscribed) == 1


async def test_the_last_listener_to_leave_ends_the_subscription(valkey: Valkey, subscriber: Subscriber) -> None:
    first, second = Ear(), Ear()
    _, name = await subscriber.subscribe(channel(), first)
    await subscriber.subscribe(channel(), second)
    subscriber.unsubscribe(name, first)
    publish(valkey, name, "still")
    await until(lambda: second.heard == ["still"], what="the second hears")
    assert first.heard == []
    subscriber.unsubscribe(name, second)
    assert subscriber.channel_count == 0
    await until(lambda: ask(valkey, lambda client: client.pubsub_channels()) == [], what="nothing is subscribed")


async def test_unsubscribing_twice_leaves_another_listener_alone(valkey: Valkey, subscriber: Subscriber) -> None:
    first, second = Ear(), Ear()
    _, name = await subscriber.subscribe(channel(), first)
    await subscriber.subscribe(channel(), second)
    subscriber.unsubscribe(name, first)
    subscriber.unsubscribe(name, first)
    publish(valkey, name, "still")
    await until(lambda: second.heard == ["still"], what="the second hears")


async def test_leaving_and_coming_back_at_once_is_confirmed_by_the_right_answer(connector: AsyncConnector) -> None:
    server = SlowServer()
    session = _Session(connection=server, cell=await connector.cell(), ping_s=60, silent_s=60, ended=lambda _: None)
    hasty = asyncio.ensure_future(session.add("c", Ear()))
    await until(lambda: server.commands == [("SUBSCRIBE", "c")], what="the command is on its way")
    hasty.cancel()
    await asyncio.gather(hasty, return_exceptions=True)
    patient = asyncio.ensure_future(session.add("c", Ear()))
    await until(lambda: len(server.commands) == 3, what="it came back")
    assert server.commands[1:] == [("UNSUBSCRIBE", "c"), ("SUBSCRIBE", "c")]
    server.answer("subscribe", "c", 1)
    server.answer("unsubscribe", "c", 0)
    await until(lambda: server.read == 2, what="two answers are read")
    for _ in range(20):
        await asyncio.sleep(0)
    assert not patient.done()
    server.answer("subscribe", "c", 1)
    await patient
    await session.close()


class SlowServer:
    """A connection whose answers come when the test says."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, ...]] = []
        self.read = 0
        self._answers: asyncio.Queue[list[object]] = asyncio.Queue()

    def answer(self, *reply: object) -> None:
        self._answers.put_nowait(list(reply))

    async def send_command(self, *command: str, **_: object) -> None:
        self.commands.append(command)

    async def read_response(self, **_: object) -> list[object]:
        reply = await self._answers.get()
        self.read += 1
        return reply

    async def disconnect(self, **_: object) -> None:
        pass


async def test_a_follower_that_is_cancelled_while_subscribing_disturbs_nobody(
    valkey: Valkey, subscriber: Subscriber
) -> None:
    steady = Ear()
    _, name = await subscriber.subscribe(channel("steady"), steady)
    for i in range(50):
        hasty = asyncio.ensure_future(subscriber.subscribe(channel(f"hasty{i}"), Ear()))
        for _ in range(i % 5):
            await asyncio.sleep(0)
        hasty.cancel()
        await asyncio.gather(hasty, return_exceptions=True)
    publish(valkey, name, "still")
    await until(lambda: steady.heard == ["still"], what="the steady one hears")
    assert (steady.interruptions, subscriber.channel_count) == (0, 1)


async def test_a_quiet_connection_lives_on_because_the_server_answers_pings(
    valkey: Valkey, connector: AsyncConnector
) -> None:
    subscriber = Subscriber(connector=connector, ping_s=0.05, silent_s=1.0)
    ear = Ear()
    _, name = await subscriber.subscribe(channel(), ear)
    pings = _pings(valkey)
    # Forty pauses of 50 ms are twice the silence that would end it.
    await until(lambda: _pings(valkey) >= pings + 40, what="the connection was pinged")
    assert ear.interruptions == 0
    assert publish(valkey, name, "still") == 1
    await until(lambda: ear.heard == ["still"], what="the message came")
    await subscriber.close()


def _pings(valkey: Valkey) -> int:
    statistics = ask(valkey, lambda client: client.info("commandstats"))
    return int(statistics.get("cmdstat_ping", {"calls": 0})["calls"])


async def test_a_server_that_answers_nothing_breaks_the_connection(valkey: Valkey, connector: AsyncConnector) -> None:
    subscriber = Subscriber(connector=connector, ping_s=0.02, silent_s=0.1)
    ear = Ear()
    await subscriber.subscribe(channel(), ear)
    with hung(valkey):
        await until(lambda: ear.interruptions == 1, what="the silence was noticed")
        assert subscriber.channel_count == 0
    await subscriber.subscribe(channel(), ear)
    await subscriber.close()


async def test_a_subscription_that_is_not_confirmed_in_time_is_unavailable(
    valkey: Valkey, connector: AsyncConnector
) -> None:
    subscriber = Subscriber(connector=connector, ping_s=60, silent_s=0.2)
    steady = Ear()
    await subscriber.subscribe(channel("steady"), steady)
    with hung(valkey), pytest.raises(StoreUnavailable):
        await subscriber.subscribe(channel("late"), Ear())
    assert (steady.interruptions, subscriber.channel_count) == (1, 0)
    await subscriber.close()


async def test_a_restart_tells_every_listener_once_and_the_next_subscription_works(
    valkey: Valkey, subscriber: Subscriber
) -> None:
    ears = [Ear() for _ in range(10)]
    names = [(await subscriber.subscribe(channel(f"c{i % 5}"), ear))[1] for i, ear in enumerate(ears)]
    restart(valkey)
    await until(lambda: all(ear.interruptions for ear in ears), what="all were told")
    _, name = await subscriber.subscribe(channel("c0"), ears[0])
    assert name not in names
    assert publish(valkey, name, "again") == 1
    await until(lambda: ears[0].heard == ["again"], what="the message came")
    assert [ear.interruptions for ear in ears] == [1] * 10


async def test_without_a_server_subscribing_is_unavailable(valkey: Valkey, subscriber: Subscriber) -> None:
    await subscriber.subscribe(channel(), Ear())
    valkey.kill()
    with pytest.raises(StoreUnavailable):
        await subscriber.subscribe(channel("other"), Ear())
    with pytest.raises(StoreUnavailable):
        await subscriber.subscribe(channel("other"), Ear())
    assert subscriber.channel_count == 0


async def test_a_connection_to_a_server_that_was_replaced_is_given_up(valkey: Valkey) -> None:
    with services.valkey() as successor:
        urls = [valkey.url]
        connector = AsyncConnector(url=lambda: urls[-1])
        subscriber = Subscriber(connector=connector)
        ear = Ear()
        await subscriber.subscribe(channel(), ear)
        urls.append(successor.url)
        # Some other user of the connector noticed that its connection broke.
        (await connector.cell()).drop()
        _, name = await subscriber.subscribe(channel(), Ear())
        assert ear.interruptions == 1
        assert publish(successor, name, "here") == 1
        await subscriber.close()
        await connector.close()


async def test_closing_leaves_no_task_and_no_connection(valkey: Valkey, connector: AsyncConnector) -> None:
    before = tasks()
    subscriber = Subscriber(connector=connector)
    ear = Ear()
    await subscriber.subscribe(channel(), ear)
    await subscriber.close()
    await connector.close()
    assert tasks() == before
    assert ear.interruptions == 1
    await until(lambda: connections(valkey) == 0, what="the connections are closed")
    await subscriber.close()
