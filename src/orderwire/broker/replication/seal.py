"""The batch that stands where nobody in sync has anything: a control batch of a type of our own.

Every tested client steps over it, at the end of a log too.  It is the same byte for byte wherever
it is made.  [S004:R4, S004:8.3]
"""

from struct import Struct

import msgspec

from orderwire.broker.wire.batch import CONTROL, BatchHeader, read_header
from orderwire.broker.wire.parts import Buffer
from orderwire.broker.wire.records import Record, build_batch, records_of_batch
from orderwire.kernel.errors import RemoteProtocolError

_KEY = Struct(">hh").pack(0, 0x4F57)
"""Version and type, "OW": clients know types 0 and 1 only."""
_VALUE = Struct(">iq")


class Seal(msgspec.Struct, frozen=True, gc=False):
    """Why a run of offsets holds nothing."""

    first: int
    last: int
    epoch: int
    """Of the round that found it out; also the batch's."""
    round: int
    reason: str


def make_seal(seal: Seal, at_ms: int) -> bytearray:
    """Build the batch for these offsets; `at_ms` is its time, in milliseconds since 1970.

    Its record stands at the last of them: kafkajs goes on behind the last record that it sees.
    """
    assert seal.first <= seal.last, f"a seal of {seal.first} … {seal.last}"
    value = _VALUE.pack(seal.epoch, seal.round) + seal.reason.encode()
    return build_batch(
        [Record(value, key=_KEY, timestamp=at_ms)],
        base_offset=seal.first,
        leader_epoch=seal.epoch,
        attributes=CONTROL,
        first_delta=seal.last - seal.first,
    )


def may_be_seal(header: BatchHeader) -> bool:
    """Whether it is worth reading the batch to see if it is a seal."""
    return bool(header.attributes & CONTROL) and header.count == 1


def read_seal(batch: Buffer, at: int = 0) -> Seal | None:
    """What a seal says; None when the batch is no seal."""
    header = read_header(batch, at)
    if not may_be_seal(header):
        return None
    try:
        record = next(records_of_batch(batch, at))
    except RemoteProtocolError:
        return None
    value = record.value
    if record.key != _KEY or value is None or len(value) < _VALUE.size:
        return None
    epoch, number = _VALUE.unpack_from(value)
    reason = value[_VALUE.size :].decode(errors="replace")
    return Seal(header.base_offset, header.last_offset, epoch, number, reason)
