"""What comes in over a connection and what goes back."""

from enum import Enum
from struct import Struct
from typing import Any

import msgspec

from orderwire.broker.security.login import ANONYMOUS, Login
from orderwire.broker.wire.api import Api
from orderwire.broker.wire.parts import Part
from orderwire.kernel import NS_PER_MS

NS_PER_FAILED_LOGIN = 100 * NS_PER_MS
"""How long a refused login waits for its answer: guessing takes time."""
RETRY_DELAY_NS = 75 * NS_PER_MS
"""How long an error is held back that some client would answer with the same request at once."""

_PLAIN = Struct(">ii")
_FLEXIBLE = Struct(">iiB")


class Client(msgspec.Struct, frozen=True):
    """Who asks, and under which address this broker is known to it."""

    host: str
    advertised_host: str
    advertised_port: int
    login: Login | None = None
    """How it says who it is; None where nobody is asked."""
    connection: int = 0
    """Tells this broker's connections apart."""
    redirected: dict[object, int] = msgspec.field(default_factory=dict)
    """Until when a partition is read here though it was offered elsewhere."""

    @property
    def principal(self) -> str:
        """Who it is, as Kafka writes it."""
        if self.login is None or self.login.principal is None:
            return ANONYMOUS
        return self.login.principal

    @property
    def is_stranger(self) -> bool:
        """Whether it has yet to say who it is."""
        return self.login is not None and self.login.principal is None


class Request(msgspec.Struct, frozen=True, gc=False):
    """One decoded request.  Its body may hold views into the receive buffer: copy what you keep."""

    token: int
    """The runtime's name for the request; a parked one is answered under it."""
    api: Api
    version: int
    correlation_id: int
    client_id: str
    client: Client
    body: Any


class Reply(msgspec.Struct, frozen=True, gc=False):
    """One response frame, its length field included."""

    parts: list[Part]
    length: int
    """Bytes of all parts together."""
    durable: bool = False
    """Hold it back until what the broker wrote before it is on disk."""
    delay_ns: int = 0
    """Hold it back this long, and everything behind it on the connection."""
    is_last: bool = False
    """Close the connection behind it."""


class Outcome(Enum):
    """Of a request that has no reply (yet)."""

    PARKED = "parked"
    """The reply comes later, under the request's token; until then the connection is mute."""
    PENDING = "pending"
    """The reply comes later, under the request's token; the connection is served on meanwhile."""
    NOTHING = "nothing"
    """There is no reply: the producer wanted none."""


def reply(
    request: Request,
    response: msgspec.Struct,
    *,
    durable: bool = False,
    delay_ns: int = 0,
    is_last: bool = False,
) -> Reply:
    """Encode and frame a response."""
    return framed(
        request.api,
        request.version,
        request.correlation_id,
        response,
        durable=durable,
        delay_ns=delay_ns,
        is_last=is_last,
    )


def framed(
    api: Api,
    version: int,
    correlation_id: int,
    response: msgspec.Struct,
    *,
    durable: bool = False,
    delay_ns: int = 0,
    is_last: bool = False,
) -> Reply:
    """Encode and frame a response to a request that was never decoded as a whole."""
    body = api.encode_response(response, version)
    if api.response_header_version(version):
        head = _FLEXIBLE.pack(len(body) + 5, correlation_id, 0)
    else:
        head = _PLAIN.pack(len(body) + 4, correlation_id)
    frame = head + body
    return Reply([frame], len(frame), durable, delay_ns, is_last)


def reply_of_parts(request: Request, parts: list[Part], *, delay_ns: int = 0) -> Reply:
    """Frame a response that was encoded as parts."""
    size = sum(map(len, parts))
    if request.api.response_header_version(request.version):
        head = _FLEXIBLE.pack(size + 5, request.correlation_id, 0)
    else:
        head = _PLAIN.pack(size + 4, request.correlation_id)
    parts.insert(0, head)
    return Reply(parts, size + len(head), delay_ns=delay_ns)
