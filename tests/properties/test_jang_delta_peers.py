"""Peers that send anything the codec lets through: no crash, no unbounded state."""

from random import Random

import pytest

from orderwire.kernel import (
    Destinations,
    Indicate,
    Instant,
    ProcessId,
    RemoteProtocolError,
    Send,
)
from orderwire.ordering.jang_delta import JangDelta
from orderwire.ordering.jang_delta_codec import (
    Entries,
    JangDeltaCodec,
    JangDeltaPdu,
    Layout,
    join_waits,
)
from orderwire.ordering.pdu import Delivered, Multicast
from orderwire.ordering.settings import OrderingSettings
from orderwire.ordering.wire import encode_head

MEMBERS = 5
WAITING_MAX = 20


def drawn_pdu(chance: Random, layout: Layout, now: int) -> bytes:
    """A datagram that parses, but follows no protocol."""
    stamp = max(40, now + chance.randint(-60, 40))
    mask = Destinations(chance.randrange(1, 1 << MEMBERS))
    entries: dict[int, Entries] = {}
    for sender in chance.sample(range(MEMBERS), chance.randint(0, MEMBERS)):
        ages = sorted(chance.sample(range(1, 40), chance.randint(1, MEMBERS)))
        entries[sender] = tuple((stamp - age, chance.randrange(1 << MEMBERS)) for age in ages)
    waits = [
        (sender, stamp - chance.randint(1, 40))
        for sender in chance.sample(range(MEMBERS), chance.randint(0, MEMBERS))
    ]
    control = encode_head(stamp, chance.randrange(1_000), mask)
    control += layout.encode_entries(stamp, entries)
    return control + join_waits(*layout.encode_waits(stamp, waits))


@pytest.mark.parametrize("lifetime", [50, None])
@pytest.mark.parametrize("seed", range(15))
def test_any_peer_is_survived(seed: int, lifetime: int | None) -> None:
    chance = Random(seed)
    settings = OrderingSettings(
        members=MEMBERS,
        lifetime_ns=lifetime,
        tick_ns=1,
        future_guard_ns=20,
        waiting_messages_max=WAITING_MAX,
    )
    layout = Layout(settings)
    codec = JangDeltaCodec(ProcessId(0), settings)
    core = JangDelta(ProcessId(0), settings)
    delivered: set[tuple[int, int]] = set()
    now = 100
    for _ in range(400):
        now += chance.randint(0, 6)
        effects = []
        action = chance.random()
        if action < 0.15:
            effects = core.submit(
                Multicast(b"", Destinations(chance.randrange(1, 1 << MEMBERS))), Instant(now)
            )
            for effect in effects:
                if isinstance(effect, Send):
                    pdu = effect.pdu
                    assert isinstance(pdu, JangDeltaPdu)
                    assert codec.decode(codec.encode(pdu)) == pdu
                    groups = list(pdu.entries.values())
                    assert all(len(group) <= MEMBERS for group in groups)
        elif action < 0.3:
            effects = core.wake(Instant(now))
        else:
            pdu = codec.decode(drawn_pdu(chance, layout, now))
            source = ProcessId(chance.randrange(MEMBERS))
            try:
                effects = core.receive(source, pdu, Instant(now))
            except RemoteProtocolError:
                assert source == 0 or not pdu.destinations & 1
        for effect in effects:
            if isinstance(effect, Indicate) and isinstance(effect.indication, Delivered):
                key = (effect.indication.source, effect.indication.stamp)
                assert key not in delivered
                delivered.add(key)
        assert len(core._held) <= WAITING_MAX
        deadline = core.next_deadline()
        if lifetime is not None and core._held:
            assert deadline is not None
            assert deadline <= now + lifetime + settings.future_guard_ns + 60
    assert len(delivered) > 20
