"""Histories of a partition: whole ones, and twins of them in which one promise is broken."""

from random import Random

from orderwire.verify.replication import (
    Acknowledged,
    Batch,
    Committed,
    Delivered,
    Elected,
    Event,
    Held,
    LogStart,
    OnDisk,
    Requested,
    RoundEnd,
    Settled,
    TookLower,
)


def history(draw: Random, messages: int = 40) -> list[Event]:
    """A history without a fault: three brokers, one session each, acks by turns."""
    names = [f"m{number}" for number in range(messages)]
    events: list[Event] = [Elected(0, 1), Elected(1, 2)]
    batches: list[Batch] = []
    at = 0
    end = 0
    while at < messages:
        count = min(draw.randint(1, 4), messages - at)
        told = tuple(names[at : at + count])
        acks = draw.choice((1, -1))
        events.append(Requested(f"s{at % 2}", told, acks))
        if draw.random() < 0.1:
            batches.append(Batch(end, end + 1, 0, 7, (), True))
            end += 2
        batches.append(Batch(end, end + count - 1, 0, draw.randrange(1 << 32), told))
        events.append(RoundEnd(1, end, end + count))
        for broker in range(3):
            fresh = tuple(batches[-1:])
            start = end if broker else 0
            events.append(
                Committed(broker, 0, start, end + count, fresh if broker else tuple(batches))
            )
        events.append(Acknowledged(told, acks, end))
        end += count
        at += count
    records = tuple(
        (offset, name)
        for batch in batches
        for offset, name in enumerate(batch.messages, batch.first)
    )
    events.append(Delivered("c", 0, 0, end, end, records))
    events.append(LogStart(0))
    events += [Held(broker, True, end, tuple(batches)) for broker in range(3)]
    events += [OnDisk(frozenset(names)), Settled((0, 1, 2), (0, 1, 2))]
    return events


def broken(kind: str, events: list[Event], draw: Random) -> list[Event]:
    """The same history, but for one promise."""
    events = list(events)

    def last(of: type) -> int:
        return max(at for at, event in enumerate(events) if isinstance(event, of))

    acked = [
        at
        for at, event in enumerate(events)
        if isinstance(event, Acknowledged) and event.acks == -1
    ]
    at = draw.choice(acked)
    told = events[at]
    assert isinstance(told, Acknowledged)
    held = events[last(Held)]
    assert isinstance(held, Held)
    match kind:
        case "I1":
            events[at] = Acknowledged(told.messages, -1, told.base_offset + 1)
        case "I2":
            wrong = list(held.batches)
            which = draw.randrange(len(wrong))
            one = wrong[which]
            wrong[which] = Batch(
                one.first, one.last, one.epoch, one.digest ^ 1, one.messages, one.seal
            )
            events[last(Held)] = Held(held.broker, True, held.high_watermark, tuple(wrong))
        case "I3":
            read = events[last(Delivered)]
            assert isinstance(read, Delivered)
            cut = draw.randrange(len(read.records))
            records = read.records[:cut] + read.records[cut + 1 :]
            events[last(Delivered)] = Delivered(
                "c", 0, 0, read.next_position, read.high_watermark, records
            )
        case "I4":
            events.insert(last(Settled), Requested("s9", ("lost",), 1))
            events.insert(last(OnDisk), Acknowledged(("lost",), 1, 10_000))
        case "I5":
            end = held.batches[-1].last + 1
            again = Batch(end, end, 0, 5, (told.messages[0],))
            events.insert(last(Delivered), Committed(1, 0, end, end + 1, (again,)))
        case "I6":
            events.insert(last(Delivered), RoundEnd(1, 0, 1))
        case "I7":
            events.insert(last(Delivered), draw.choice((Elected(1, 0), TookLower(0, 0, 1))))
        case "I8":
            events[last(Settled)] = Settled((0, 2), (0, 1, 2))
        case "I9":
            end = held.batches[-1].last + 1
            events.insert(last(Delivered), Requested("s7", ("a", "b"), 1))
            late = (Batch(end, end, 0, 5, ("b",)), Batch(end + 1, end + 1, 0, 6, ("a",)))
            events.insert(last(Delivered), Committed(1, 0, end, end + 2, late))
        case "I10":
            gap = held.batches[:3] + held.batches[4:]
            events[last(Held)] = Held(held.broker, False, 0, gap)
    return events
