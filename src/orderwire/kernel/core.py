"""The contract of every protocol."""

from typing import Protocol, TypeVar

from orderwire.kernel.effects import Effects
from orderwire.kernel.ids import ProcessId
from orderwire.kernel.time import Instant

CommandT_contra = TypeVar("CommandT_contra", contravariant=True)
PduT_contra = TypeVar("PduT_contra", contravariant=True)


class Core(Protocol[CommandT_contra, PduT_contra]):
    """A protocol state machine: no I/O, no clock, no chance, no logging.

    A core never keeps a list of effects it returned and never mutates a PDU it received.
    `now` never decreases from call to call.
    """

    def submit(self, command: CommandT_contra, now: Instant) -> Effects:
        """Take a command from the application.  Raises LocalProtocolError."""
        ...

    def receive(self, source: ProcessId, pdu: PduT_contra, now: Instant) -> Effects:
        """Take a PDU that the network brought at `now`.  Raises RemoteProtocolError."""
        ...

    def wake(self, now: Instant) -> Effects:
        """Act on every deadline at or before `now`."""
        ...

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        ...
