"""PDUs, commands and indications of selectively totally ordered broadcast.  [S003:sec.3.1]

Vectors have one number a process id, 0 for ids that are in no view; who knows of fewer processes
sends shorter ones.  Every PDU is broadcast on
the channel, and its sender gets it back from there like everybody else: its place in the order is
known only that way.
"""

from typing import TypeAlias

import msgspec

from orderwire.kernel import Destinations, Instant, ProcessId

Epoch: TypeAlias = tuple[int, int]
"""(view, recovery in it); ordered as pairs are."""

Numbers: TypeAlias = tuple[int, ...]
"""One number a process id."""


def number_at(numbers: Numbers, process: int) -> int:
    """Return a process's number; 0 where the vector does not reach it: a newcomer's."""
    return numbers[process] if process < len(numbers) else 0


class Member(msgspec.Struct, frozen=True, gc=False, order=True):
    """One incarnation of a process."""

    process: ProcessId
    incarnation: int = 0


class ChangeView(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Command: the view service has agreed that these are the members now.  [S003:dec.1]

    Views are numbered upwards; a member is told every view that it belongs to.
    """

    number: int
    members: tuple[Member, ...]


class Installed(msgspec.Struct, frozen=True, gc=False):
    """Indication: from here on the view is this.

    All survivors have been handed the same messages before it, each those that are for it: all that
    were sent before it.  Who joined has been handed none of them; what it needs of the past is the
    application's to send.  To who joins all members are `joined`.
    """

    number: int
    members: tuple[Member, ...]
    joined: tuple[ProcessId, ...]
    departed: tuple[ProcessId, ...]


class Excluded(msgspec.Struct, frozen=True, gc=False):
    """Indication: this process is in no view any more and has stopped."""

    number: int
    unsent: int
    """Messages of the application that never left."""


class Suspected(msgspec.Struct, frozen=True, gc=False):
    """Indication: this member was asked and does not answer.  Only the view service may act."""

    process: ProcessId


class Turn(msgspec.Struct, frozen=True, gc=False):
    """Indication to the runtime: call `turn` when the channel can take a PDU of this process.

    What is sent then says what is known then, not what was known when it became due.
    """


class Data(msgspec.Struct, frozen=True, gc=False):
    """A message; without destinations a NULL, which only tells what its sender has."""

    epoch: Epoch
    tseq: int
    destinations: Destinations
    pseq: Numbers
    ack: Numbers
    buffers: int
    """BUF: free places at the sender."""
    poll: bool = False
    number: int = 0
    """How many messages its sender had sent before; of no meaning in a NULL."""
    stamp: Instant = Instant(0)
    """The sender's clock when the application asked."""
    payload: bytes = b""
    control_bytes: int = 0
    """Bytes of the encoded PDU that are not payload; not sent, known to who has decoded it."""


class Rtx(msgspec.Struct, frozen=True, gc=False):
    """A message once more, for who misses it."""

    epoch: Epoch
    tseq: int
    destinations: Destinations
    pseq: Numbers
    number: int
    stamp: Instant
    payload: bytes
    control_bytes: int = 0


class Nak(msgspec.Struct, frozen=True, gc=False):
    """These of my places are empty."""

    epoch: Epoch
    missing: tuple[tuple[ProcessId, Numbers], ...]
    """Source → its PSEQ numbers for the sender of this PDU, ascending; without numbers, it is asked
    for the last that it has told."""


class Rst(msgspec.Struct, frozen=True, gc=False):
    """Something is lost: this epoch begins."""

    epoch: Epoch


class Has(msgspec.Struct, frozen=True, gc=False):
    """A_j: what a member has of one source's messages to it."""

    preq: int
    """PSEQ expected next."""
    holes: Numbers = ()
    """Places before it that are still empty, by PSEQ, ascending."""
    held: Numbers = ()
    """What has arrived beyond it, by PSEQ, ascending."""

    def first_missing(self) -> int:
        """Return the lowest PSEQ that is not here."""
        if self.holes:
            return self.holes[0]
        at = self.preq
        for number in self.held:
            if number != at:
                break
            at += 1
        return at

    def missing(self, end: int) -> Numbers:
        """Return the PSEQ numbers below `end` that are not here, ascending."""
        held = set(self.held)
        return self.holes + tuple(n for n in range(self.preq, end) if n not in held)


class Header(msgspec.Struct, frozen=True, gc=False):
    """What is known of a message to who does not have it, or has it from a departed source."""

    source: ProcessId
    tseq: int
    destinations: Destinations
    pseq: Numbers


class Record(msgspec.Struct, frozen=True, gc=False):
    """REC: what all members computed when an epoch was completed.  [S003:dec.1]"""

    epoch: Epoch
    lines: tuple[tuple[ProcessId, int], ...]
    """V of every member: the failure line."""
    departed: tuple[tuple[ProcessId, int], ...]
    """The same of departed sources of which something was not delivered everywhere."""
    sent: tuple[tuple[ProcessId, int, Numbers], ...]
    """Of every member: N, D."""
    order: tuple[ProcessId, ...]
    """The rank of the sources, first to last."""


class Known(msgspec.Struct, frozen=True, gc=False):
    """What RST_PAK and RST_ACK tell."""

    has: tuple[Has, ...]
    """A."""
    pseq: Numbers
    """D: the number that the sender's next message to each process will have."""
    tseq: int
    """N."""
    ack: Numbers
    record: Record | None = None
    """In a change of views; None from a member that has just joined."""
    headers: tuple[Header, ...] = ()


class RstPak(msgspec.Struct, frozen=True, gc=False):
    """I have stopped, and this is what I have."""

    epoch: Epoch
    need: Destinations
    """Whose RST_PAK the sender has not received yet."""
    known: Known


class RstAck(msgspec.Struct, frozen=True, gc=False):
    """I have everybody's RST_PAK; what I have now is final."""

    epoch: Epoch
    need: Destinations
    """Whose RST_ACK the sender has not received yet."""
    known: Known
    line: int
    """V: the first TSEQ of the sender that some destination misses; N when none is."""
    order: tuple[ProcessId, ...]
    """ORDR: the members in the order of their first RST_PAK here."""


Pdu: TypeAlias = Data | Rtx | Nak | Rst | RstPak | RstAck
Control: TypeAlias = RstPak | RstAck


def traced_kind(pdu: object) -> str:
    """Return what a trace calls a PDU that is no message; empty for a message."""
    if isinstance(pdu, Rtx) or (isinstance(pdu, Data) and pdu.destinations):
        return ""
    return "null" if isinstance(pdu, Data) else type(pdu).__name__.lower()
