"""What can be wrong with a trace."""

from orderwire.kernel import OrderwireError


class TraceError(OrderwireError):
    """What was given is no complete, readable trace."""


class TraceVersionError(TraceError):
    """The trace was written in a version of the schema that this reader does not know."""
