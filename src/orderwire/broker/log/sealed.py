"""Small files of the log: MessagePack behind a checksum."""

from typing import TypeVar

import msgspec
from crc32c import crc32c

from orderwire.kernel.parsing import UNREADABLE

T = TypeVar("T", bound=msgspec.Struct)


def seal(content: msgspec.Struct) -> bytes:
    """Encode with a CRC-32C in front."""
    body = msgspec.msgpack.encode(content)
    return crc32c(body).to_bytes(4, "big") + body


def unseal(data: bytes | None, kind: type[T]) -> T | None:
    """Decode; None when there is nothing, or not what was written."""
    if data is None or len(data) < 4 or crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
        return None
    try:
        return msgspec.msgpack.decode(data[4:], type=kind)
    except UNREADABLE:
        return None
