"""What the other side of a connection may do wrong, in a word each, to be counted by."""

from enum import StrEnum

from orderwire.kernel import RemoteProtocolError


class Fault(StrEnum):
    """Why a connection was refused or cut."""

    STRANGER = "stranger"
    """Of another domain, or not who or where it says."""
    MALFORMED = "malformed"
    """It broke the rules of frames and connections."""
    OVERSIZED = "oversized"
    """It began a message larger than is taken, or all unfinished ones together are."""
    SLOW = "slow"
    """A message did not arrive in time, or nothing was taken of what waits for it."""
    SILENT = "silent"
    """It did not say in time who it is, as those that are open on one side alone."""
    UNPROTECTED = "unprotected"
    """No TLS handshake with a certificate of the domain's CA."""
    TOO_MANY = "too many"
    """So many connections are open already."""


class PeerFault(RemoteProtocolError):
    """A fault of the other side that has a word."""

    def __init__(self, fault: Fault, why: str) -> None:
        super().__init__(why)
        self.fault = fault


def fault_of(error: RemoteProtocolError) -> Fault:
    """Return the word of any fault of the other side."""
    return error.fault if isinstance(error, PeerFault) else Fault.MALFORMED
