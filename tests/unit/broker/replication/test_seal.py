"""The batch that stands where nothing is."""

import pytest
from logs import NOW_MS, batch, open_log

from orderwire.broker.log import Appended, MemoryStorage
from orderwire.broker.replication.seal import Seal, make_seal, may_be_seal, read_seal
from orderwire.broker.wire.batch import CONTROL, crc_matches, read_header
from orderwire.broker.wire.records import Record, build_batch, records_of_batch


@pytest.mark.paper("S004:8.3")
@pytest.mark.parametrize("length", [1, 2, 500, 1 << 31])
def test_a_seal_is_the_control_batch_that_clients_step_over(length: int) -> None:
    seal = Seal(100, 99 + length, 7, 12, "nobody in sync has these offsets")
    made = make_seal(seal, NOW_MS)
    assert made == make_seal(seal, NOW_MS)
    header = read_header(made)
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (100, 99 + length, 7)
    assert (header.attributes, header.count, header.producer_id) == (CONTROL, 1, -1)
    assert crc_matches(made, 0, len(made), header.crc)
    record = next(records_of_batch(made))
    assert (record.key, record.offset) == (b"\x00\x00OW", 99 + length)
    assert may_be_seal(header)
    assert read_seal(made) == seal


def test_nothing_else_is_a_seal() -> None:
    assert read_seal(batch(b"v")) is None
    for key, value in ((b"\0\0\0\1", b""), (b"\0\0OW", b"short"), (b"\0\0OW", None), (None, b"")):
        other = build_batch([Record(value, key=key)], attributes=CONTROL)
        assert read_seal(other) is None


def test_a_log_takes_a_seal_in_its_place() -> None:
    log = open_log(MemoryStorage())
    log.append(batch(b"a", b"b"), 3, NOW_MS)
    assert log.append_placed(make_seal(Seal(2, 9, 4, 1, ""), NOW_MS), NOW_MS) == Appended(2, 9)
    log.append(batch(b"c"), 4, NOW_MS)
    assert [each.base_offset for each in log.batches(5)] == [2, 10]
