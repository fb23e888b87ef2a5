"""What a discovery core asks its runtime to do: post to an address, or tell the application.

Peers are known by the address they listen at, since ids come and go.
"""

from typing import Any, TypeAlias

import msgspec

from orderwire.kernel import Indicate

Address: TypeAlias = str
"""Where a participant listens, as its runtime writes it, e.g. `127.0.0.1:7400`."""


class Post(msgspec.Struct, frozen=True, gc=False):
    """Send this message to the process that listens there, over a reliable stream in order."""

    to: Address
    message: Any


DiscoveryEffects: TypeAlias = list[Post | Indicate[Any]]
"""Applied by the runtime in order, before it asks for the next deadline."""
