"""What ST-CSN sends besides ST's PDUs.  [S003:sec.4.1]"""

from typing import Self

import msgspec

from orderwire.kernel import ProcessId
from orderwire.ordering.total.pdu import Data, Epoch, Header, Numbers, Rtx


class KeepPlace(msgspec.Struct, frozen=True, gc=False):
    """Indication to the runtime: call `fill_place` when what I have sent before is on the channel.

    What is sent then needs no number, so what I send later need not be before it, as for `Turn`.
    """


class Blank(msgspec.Struct, frozen=True, gc=False):
    """These numbers of the channel have not come to the sender, and cannot any more."""

    epoch: Epoch
    numbers: Numbers
    """Ascending."""
    attempt: int
    """How often they were asked for before; -1: the sender has no need of them itself."""


class PutAgain(Data, frozen=True, gc=False):
    """A message that nobody has heard, or a NULL: what came after it first may now be before it."""


class Named(msgspec.Struct, frozen=True, gc=False):
    """What has these numbers of the channel."""

    epoch: Epoch
    names: tuple[tuple[int, Header | None], ...]
    """None: nothing that has a place in this epoch."""


class NumberedRtx(Rtx, frozen=True, gc=False, kw_only=True):
    """A message once more, with its number of the channel."""

    csn: int

    @classmethod
    def of(cls, data: Data, csn: int) -> Self:
        """Repeat this one."""
        fields = (data.tseq, data.destinations, data.pseq, data.number, data.stamp, data.payload)
        return cls(data.epoch, *fields, csn=csn)


def header_of(source: ProcessId, pdu: Data | Rtx) -> Header:
    """Return what stands for a message where its payload is not needed."""
    return Header(source, pdu.tseq, pdu.destinations, pdu.pseq)
