"""Header-only notices of copies that will not come: who sends one, who may conclude what."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st
from lossy_group import converse
from two_links import End, Network, pair

from orderwire import Counters, DeltaCausal, Impairment, Published
from orderwire.aio import frames
from orderwire.aio.frames import HEAD, NOTICE, SURE, Kind, Way
from orderwire.aio.outbound import LOSSY_NS, WAITING_BYTES_MAX
from orderwire.kernel import Instant, ms
from orderwire.trace import MemorySink
from orderwire.verify.audit import audit
from orderwire.verify.source import TableSource

DELAY = ms(10)
WAY = Way(0, 1, 2, 7)


def header(pdu: memoryview) -> bytes:
    return b"notice of " + bytes(pdu[:1])


def group(lifetime_ms: int) -> tuple[Network, End, End]:
    """Two ends that know their round trip of 20 ms; the sender makes notices."""
    network, sender, receiver = pair(lambda *_: (DELAY,), ms(lifetime_ms))
    sender.lane.header_only = header
    for end in (sender, receiver):
        end.link.ping(Instant(network.now))
    network.run(network.now + ms(25))
    return network, sender, receiver


def lose(network: Network, text: bytes) -> None:
    network.fate = lambda _, __, data: () if text in data and b"notice" not in data else (DELAY,)


def sent_notices(network: Network) -> list[bytes]:
    return [data for _, _, data in network.sent if b"notice of" in data]


def test_a_notice_names_the_copies_of_its_datagram() -> None:
    data = frames.data_datagram(WAY, 5, 99, [b"one", b"two"])
    for sure in (False, True):
        notice = frames.notice_datagram(data, header, sure=sure)
        assert notice is not None
        kind, flags, *_, count, session, target, first, last = HEAD.unpack_from(notice)
        assert (kind, count, session, target, first, last) == (Kind.DATA, 2, 1, 2, 5, 99)
        assert flags == (NOTICE | SURE if sure else NOTICE)
        pdus = frames.split(memoryview(notice), HEAD.size, count, flags)
        assert list(map(bytes, pdus)) == [b"notice of o", b"notice of t"]
    long = frames.data_datagram(WAY, 5, 99, [bytes(70_000)])
    assert len(frames.notice_datagram(long, header, sure=True) or b"") < 100
    assert frames.notice_datagram(frames.data_datagram(WAY, 5, 99, []), header, sure=True) is None


def test_what_cannot_be_repaired_in_time_is_concluded_long_before_its_deadline() -> None:
    network, sender, receiver = group(25)
    sender.lane.outbound.lossy_until = network.now + LOSSY_NS
    lose(network, b"1 lost")
    start = network.now
    for text in (b"0", b"1 lost", b"2"):
        sender.send(text)
        network.run(network.now + ms(4))
    network.run(start + ms(20))
    # At 18 ms the third shows that the second is missing; a millisecond later it is settled.
    assert receiver.got == [b"0", b"2", b"notice of 1"]
    assert [at - start for at in receiver.arrivals] == [ms(10), ms(18), ms(19)]
    assert receiver.lost_numbers == {1}
    network.run(start + ms(500))
    assert receiver.lost_numbers == {1}
    assert sender.lane.outbound.settled == 3
    assert receiver.lane.counters.lost == 1
    assert sender.lane.counters.notices > 0


def test_where_repair_is_possible_there_are_no_notices() -> None:
    network, sender, receiver = group(60)
    sender.lane.outbound.lossy_until = network.now + LOSSY_NS
    lose(network, b"1 lost")
    for text in (b"0", b"1 lost", b"2"):
        sender.send(text)
        network.run(network.now + ms(4))
    network.fate = lambda *_: (DELAY,)
    network.run(network.now + ms(100))
    assert sorted(receiver.got) == [b"0", b"1 lost", b"2"]
    assert sent_notices(network) == receiver.lost == []


def test_nobody_sends_notices_over_a_way_that_loses_nothing() -> None:
    network, sender, receiver = group(25)
    for index in range(50):
        sender.send(b"%d" % index)
        network.run(network.now + ms(4))
    network.run(network.now + ms(100))
    assert len(receiver.got) == 50
    assert sent_notices(network) == []


def test_a_copy_that_comes_after_its_notice_is_late_and_ends_concluding() -> None:
    """It was under way after all: on such a way its like are waited for from then on."""
    network, sender, receiver = group(25)
    sender.lane.outbound.lossy_until = network.now + LOSSY_NS
    network.fate = lambda _, __, data: (
        (DELAY + ms(12),) if b"slow" in data and b"notice" not in data else (DELAY,)
    )
    for text in (b"0", b"1 slow", b"2"):
        sender.send(text)
        network.run(network.now + ms(4))
    network.run(network.now + ms(30))
    assert receiver.got == [b"0", b"2", b"notice of 1"]
    assert receiver.lane.counters.late == 1
    for text in (b"3", b"4 slow", b"5"):
        sender.send(text)
        network.run(network.now + ms(4))
    network.run(network.now + ms(30))
    assert receiver.got[3:] == [b"3", b"5", b"4 slow"]
    assert receiver.lost_numbers == {1}


def test_what_is_dropped_before_it_was_sent_is_told_for_sure_at_once() -> None:
    """Sure notices do not wait for anything, whatever could still be asked for."""
    network, sender, receiver = group(1_000)
    out = sender.lane.outbound
    sender.link.window = 0
    start = network.now
    for index in range(20):
        sender.send(b"%02d" % index + bytes(1 << 20))
    assert out.queue_bytes > WAITING_BYTES_MAX
    dropped = out.drop_oldest(WAITING_BYTES_MAX)
    sender.link.dropped(sender.lane, dropped)
    network.run(start + DELAY)
    assert 0 < len(dropped) < 20
    first = dropped[0].first
    assert receiver.lost_numbers >= set(range(first, first + len(dropped)))
    assert len([each for each in receiver.got if each.startswith(b"notice")]) == len(dropped)
    assert receiver.arrivals[-1] == start + DELAY


def test_copies_that_came_do_not_become_notices() -> None:
    network, sender, receiver = group(25)
    sender.send(b"0", b"1")
    network.run(network.now + ms(12))
    data = frames.data_datagram(sender.lane.way, 0, network.now + ms(9), [b"0", b"1"])
    for sure in (False, True):
        notice = frames.notice_datagram(data, header, sure=sure)
        assert notice is not None
        receiver.receive(notice)
    network.run(network.now + ms(100))
    assert receiver.got == [b"0", b"1"]
    assert receiver.lost == []


@given(chance=st.randoms(use_true_random=False), lifetime_ms=st.integers(15, 60))
def test_every_copy_comes_once_or_is_lost_and_notices_are_of_lost_ones(
    chance: Random, lifetime_ms: int
) -> None:
    """Whatever the network does with copies and with notices."""
    network, sender, receiver = group(lifetime_ms)
    sender.lane.header_only = lambda pdu: b"notice of " + bytes(pdu)
    loss, spread = chance.choice([0.0, 0.2, 0.6]), chance.choice([0, 0, 1, 20])

    def fate(_source: int, _at: int, _data: bytes) -> list[int]:
        if chance.random() < loss:
            return []
        copies = chance.choice([1, 1, 1, 2])
        return [DELAY + round(chance.random() * ms(spread)) for _ in range(copies)]

    network.fate = fate
    for index in range(40):
        sender.lane.outbound.lossy_until = network.now + LOSSY_NS
        sender.send(b"%d" % index)
        network.run(network.now + round(chance.random() * ms(8)))
    network.fate = lambda *_: (DELAY,)
    network.run(network.now + ms(20_000))
    got = [int(each) for each in receiver.got if not each.startswith(b"notice")]
    noticed = [int(each.split()[-1]) for each in receiver.got if each.startswith(b"notice")]
    assert len(set(got)) == len(got)
    assert len(set(noticed)) == len(noticed)
    assert set(got) | receiver.lost_numbers == set(range(40))
    assert set(got).isdisjoint(receiver.lost_numbers)
    assert set(noticed) <= receiver.lost_numbers
    assert not receiver.lane.inbound.gaps
    assert not sender.lane.outbound.flight


def total(counters: list[Counters], name: str) -> int:
    return sum(getattr(each, name) for each in counters)


def test_notices_shorten_the_wait_of_a_group_and_the_audit_finds_no_fault() -> None:
    """Four members, round trip 20 ms, 25 ms to live, a tenth lost: nothing can be repaired.

    Beside it Jang's own algorithm, which gives the same to the same at the same time, without
    notices.
    """
    sink = MemorySink()
    told = converse(
        [DeltaCausal(lifetime_ms=25), Published(algorithm="jang-delta", lifetime_ms=25)],
        Impairment(seed=3, delay_ms=10, loss_ratio=0.1),
        messages=120,
        gap_ms=8,
        sink=sink,
    )
    ours, theirs = told["bounded-jang"], told["jang-delta"]
    assert ours.notices > 500
    assert theirs.notices == 0
    assert ours.wait_ms < theirs.wait_ms / 2
    for each in (ours, theirs):
        lost = total(each.counters, "lost")
        assert lost > 80
        assert len(each.held_ms) + lost + total(each.counters, "late") == 120 * 4 * 3
    report, _ = audit(TableSource(sink.table()))
    assert [each.verdict.value for each in report.runs] == ["VALID", "VALID"]


def test_in_real_time_no_notice_breaks_the_order() -> None:
    """As long as the machine lets it take: how much is lost is the machine's affair."""
    sink = MemorySink()
    told = converse(
        [DeltaCausal(lifetime_ms=25)],
        Impairment(seed=5, delay_ms=10, loss_ratio=0.2),
        messages=100,
        gap_ms=6,
        sink=sink,
        real_time=True,
    )
    ours = told["bounded-jang"]
    assert ours.notices > 0
    assert total(ours.counters, "malformed") == total(ours.counters, "duplicate") == 0
    report, _ = audit(TableSource(sink.table()))
    checks = {check.id: check.violations for run in report.runs for check in run.checks}
    assert checks["O1"] == checks["O2"] == 0
