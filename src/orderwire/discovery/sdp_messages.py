"""What the Simple Discovery Protocol and its Bloom variant send, and how large it is.

Sources: [S002:sec.2], RTPS 2.x sections 8.5 and 9.4.  Sizes are UDP payloads.
"""

from functools import cache
from typing import TypeAlias

import msgspec

RTPS_BYTES = 36
"""RTPS header and INFO_DST."""
HEARTBEAT_BYTES = RTPS_BYTES + 32
ACKNACK_BYTES = RTPS_BYTES + 28
"""With an empty set; a set of n numbers takes n bits more, in words of 32."""
KEY_BYTES = 4
"""One key of a request."""

ENDPOINTS_MAX = 65_536
"""Most endpoints of one participant."""


class Announcement(msgspec.Struct, frozen=True, gc=False):
    """SPDP: a participant and where it is.  With SDPBloom also what it offers, as a filter."""

    filter_bits: int = 0
    """Bits that are set in the Bloom filter."""
    filter_bytes: int = 0
    """Size of the filter; 0 is none."""


class Goodbye(msgspec.Struct, frozen=True, gc=False):
    """SPDP: the participant leaves."""


class Heartbeat(msgspec.Struct, frozen=True, gc=False):
    """SEDP: data 0 … count − 1 is there for you; say what you lack."""

    count: int


class AckNack(msgspec.Struct, frozen=True, gc=False):
    """SEDP: everything below `base` is there; of the next ones, `missing` is not.

    `end` is one more than the last number this speaks of.
    """

    base: int
    end: int
    missing: int
    """Bit i stands for data i."""


class Endpoint(msgspec.Struct, frozen=True, gc=False):
    """SEDP: data of this number, one endpoint or as many as a datagram holds."""

    number: int


class EndpointAck(msgspec.Struct, frozen=True, gc=False):
    """SEDP as the paper has it: an acknowledgement of one datum."""

    number: int


class Request(msgspec.Struct, frozen=True):
    """SDPBloom: tell me your endpoints with these keys."""

    keys: tuple[int, ...]


SdpPdu: TypeAlias = Announcement | Goodbye | Heartbeat | AckNack | Endpoint | EndpointAck | Request


@cache
def endpoint_data(number: int) -> Endpoint:
    """Return the datum of this number; there is one object for each."""
    assert 0 <= number < ENDPOINTS_MAX, f"endpoint {number}"
    return Endpoint(number)


@cache
def endpoint_ack(number: int) -> EndpointAck:
    """Return the acknowledgement of this number; there is one object for each."""
    return EndpointAck(number)


def control_bytes(pdu: SdpPdu, participant_bytes: int, heartbeat_bytes: int) -> int:
    """UDP payload of everything but endpoint data."""
    match pdu:
        case EndpointAck():
            return ACKNACK_BYTES
        case Announcement(filter_bytes=size):
            return participant_bytes + size
        case Goodbye():
            return participant_bytes
        case Heartbeat():
            return heartbeat_bytes
        case AckNack(base=base, missing=missing):
            return ACKNACK_BYTES + 4 * -(-(missing >> base).bit_length() // 32)
        case Request(keys=keys):
            return RTPS_BYTES + 24 + KEY_BYTES * len(keys)
        case Endpoint():
            raise AssertionError("endpoint data is as large as its settings say")
