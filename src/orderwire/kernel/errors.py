"""Whose fault it was."""


class OrderwireError(Exception):
    """Anything Orderwire raises on purpose."""


class LocalProtocolError(OrderwireError):
    """The caller's fault: a command the protocol cannot carry out."""


class RemoteProtocolError(OrderwireError):
    """The peer's fault: a PDU that no correct process sends.  The runtime drops and counts it."""
