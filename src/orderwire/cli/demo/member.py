"""One member of the demo's conference: a process with one participant in both groups."""

import asyncio
import contextlib
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
from confluent_kafka import Producer

from orderwire.cli.demo.children import Leader
from orderwire.cli.demo.conversation import Conversation, Turn
from orderwire.cli.demo.script import Room, listeners, read_text, write_script
from orderwire.cli.demo.settings import (
    CONTROL,
    DELIVERY_TOPIC,
    DOMAIN,
    FRAME_BYTES,
    FRAME_INTERVAL_MS,
    LIFETIME_MS,
    ORDERED,
    PATIENCE_MS,
    MemberSettings,
    trace_of,
)
from orderwire.cli.demo.sightings import VIEW
from orderwire.kernel import Instant, ProcessId, ms
from orderwire.participant import (
    DeltaCausal,
    Participant,
    Sample,
    Topic,
    Unordered,
)
from orderwire.participant.qos import Order

MATCH_SECONDS_MAX = 30
FLUSH_SECONDS_MAX = 5
LOOK_S = 0.01
"""How often a member looks whether its view has changed."""
_INDEX = struct.Struct("<I")


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A record of the deliveries' topic: what an application was handed, when, from whom."""

    group: str
    member: str
    topic: str
    source: str
    number: int
    stamp_ns: int
    delay_ms: float
    text: str


class Group:
    """One member's part in one ordering group: its rooms, its voice, what it hears."""

    def __init__(
        self,
        name: str,
        order: Order,
        participant: Participant,
        members: list[str],
        rooms: list[Room],
        deliveries: Producer,
    ) -> None:
        self._name = name
        self._participant = participant
        self._rooms = rooms
        self._deliveries = deliveries
        me = int(participant.id)
        self.conversation = Conversation(rooms, me, patience_ns=ms(PATIENCE_MS))
        self._room_of = {room.name: at for at, room in enumerate(rooms)}
        self._chat = {
            at: participant.writer(Topic(room.name, order))
            for at, room in enumerate(rooms)
            if me in room.members
        }
        self._voice = participant.writer(Topic(f"voice/{members[me]}", order))
        heard = listeners(rooms, me)
        self._listeners = len(heard)
        self.read = 0
        self.unpublished = 0
        """Records of deliveries that the broker did not take."""
        for at in self._chat:
            participant.reader(Topic(rooms[at].name, order), callback=self._on_chat)
        for other in heard:
            topic = Topic(f"voice/{members[other]}", order)
            participant.reader(topic, callback=self._on_voice)

    async def matched(self) -> None:
        """Wait until everyone who should listen does."""
        for at, writer in self._chat.items():
            await writer.wait_matched(len(self._rooms[at].members), MATCH_SECONDS_MAX)
        if self._listeners:
            await self._voice.wait_matched(self._listeners, MATCH_SECONDS_MAX)

    def say(self, turns: list[Turn]) -> None:
        """Write these utterances to their rooms."""
        for room, index in turns:
            self._chat[room].write(_INDEX.pack(index) + self._rooms[room].utterances[index])

    def speak(self, frame: bytes) -> None:
        """Write one frame of voice."""
        self._voice.write(frame)

    def _publish(self, record: bytes) -> None:
        """Write a record of a delivery; what the broker did not take is counted."""
        try:
            self._deliveries.produce(
                DELIVERY_TOPIC, key=self._participant.name, value=record, on_delivery=self._answered
            )
        except BufferError:
            self.unpublished += 1

    def _answered(self, error: object, _record: object) -> None:
        self.unpublished += error is not None

    def _on_voice(self, sample: Sample) -> None:
        self.read += 1

    def _on_chat(self, sample: Sample) -> None:
        self.read += 1
        (index,) = _INDEX.unpack_from(sample.data)
        record = Delivery(
            group=self._name,
            member=self._participant.name,
            topic=sample.topic,
            source=sample.source,
            number=sample.number,
            stamp_ns=sample.stamp,
            delay_ms=round(sample.delay_ms, 3),
            text=sample.data[_INDEX.size :].decode(errors="replace"),
        )
        self._publish(msgspec.json.encode(record))
        room = self._room_of[sample.topic]
        self.say(self.conversation.read(room, index, _now()))


async def _look(participant: Participant, since: float, leader: Leader) -> None:
    """Say who is there whenever that changes, until cancelled."""
    told: dict[str, int] | None = None
    while True:
        there = {peer.name: peer.inc for peer in participant.peers()}
        if there != told:
            told = there
            leader.say(VIEW, member=participant.name, since=since, time=time.time(), there=there)
        await asyncio.sleep(LOOK_S)


@contextlib.asynccontextmanager
async def _looking(participant: Participant, since: float, leader: Leader) -> AsyncIterator[None]:
    looking = asyncio.create_task(_look(participant, since, leader))
    try:
        yield
    finally:
        looking.cancel()


async def _talk(groups: list[Group], deliveries: Producer, leader: Leader) -> None:
    """Speak in turns and send voice until cancelled; say when all utterances are said."""
    frame = bytes(FRAME_BYTES)
    interval_s = FRAME_INTERVAL_MS / 1_000
    clock = asyncio.get_running_loop()
    start = clock.time()
    finished = False
    frames = 0
    for group in groups:
        group.say(group.conversation.start(_now()))
    while True:
        for group in groups:
            group.speak(frame)
            group.say(group.conversation.overdue(_now()))
        frames += 1
        deliveries.poll(0)  # hears the broker's answers
        done = not finished and all(group.conversation.finished for group in groups)
        if done or frames % (1_000 // FRAME_INTERVAL_MS) == 0:
            leader.say(
                "finished" if done else "talking",
                said=sum(group.conversation.spoken for group in groups),
                read=sum(group.read for group in groups),
            )
        finished = finished or done
        await asyncio.sleep(max(0.0, start + frames * interval_s - clock.time()))


def _now() -> Instant:
    return Instant(time.monotonic_ns())


async def _run(leader: Leader) -> None:
    settings = msgspec.json.decode(await leader.settings(), type=MemberSettings)
    text = read_text(None if settings.text_path is None else Path(settings.text_path))
    rooms = write_script(text, len(settings.members))
    deliveries = Producer({"bootstrap.servers": settings.brokers, "linger.ms": 50, "log_level": 2})
    trace = trace_of(settings.run, settings.brokers)
    trace.load()  # All members load at once; discovery's time is asked for.
    since = time.time()
    member = Participant(
        settings.members[settings.me],
        domain=DOMAIN,
        bootstrap=settings.bootstrap,
        wish=settings.me,
        trace=trace,
        impairment=settings.impairment,
    )
    async with member as participant, _looking(participant, since, leader):
        ordered = DeltaCausal(lifetime_ms=LIFETIME_MS, domain=ORDERED)
        control = Unordered(lifetime_ms=LIFETIME_MS, domain=CONTROL)
        groups = [
            Group(ORDERED, ordered, participant, settings.members, rooms, deliveries),
            Group(CONTROL, control, participant, settings.members, rooms, deliveries),
        ]
        for group in groups:
            await group.matched()
        leader.say("ready")
        talking: asyncio.Task[None] | None = None
        while (order := await leader.order()) is not None:
            match order["do"]:
                case "talk":
                    talking = asyncio.create_task(_talk(groups, deliveries, leader))
                case "quiet":
                    if talking is not None:
                        talking.cancel()
                    await participant.flush(FLUSH_SECONDS_MAX)
                    leader.say("quiet")
                case "gone":
                    participant.trace_gone(ProcessId(order["id"]))
                case "leave":
                    break
        if talking is not None:
            talking.cancel()
    unsent = await asyncio.to_thread(deliveries.flush, FLUSH_SECONDS_MAX)
    leader.say("left", unpublished=unsent + sum(group.unpublished for group in groups))


if __name__ == "__main__":
    asyncio.run(_run(Leader()))
