"""What a core asks its runtime to do."""

from enum import Enum
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from orderwire.kernel.ids import ProcessId

PduT = TypeVar("PduT")
IndicationT = TypeVar("IndicationT")


class Via(Enum):
    """Which channel carries a PDU."""

    DATAGRAM = "datagram"
    STREAM = "stream"


class Send(msgspec.Struct, Generic[PduT], frozen=True, gc=False):
    """Send this PDU to one process."""

    to: ProcessId
    pdu: PduT
    via: Via = Via.DATAGRAM


class Broadcast(msgspec.Struct, Generic[PduT], frozen=True, gc=False):
    """Send this PDU to every other member of the group."""

    pdu: PduT
    via: Via = Via.DATAGRAM


class Indicate(msgspec.Struct, Generic[IndicationT], frozen=True, gc=False):
    """Tell the application."""

    indication: IndicationT


Effect: TypeAlias = Send[Any] | Broadcast[Any] | Indicate[Any]
Effects: TypeAlias = list[Effect]
"""Applied by the runtime in order, before it asks for the next deadline."""
