"""Messages that one PDU carries: what an application writes meanwhile, to the same destinations.

A pack begins with the number of its first message (varint); each message is its length (varint)
and its bytes.
"""

from collections.abc import Sequence

from orderwire.kernel import RemoteProtocolError, read_varint, write_varint

PACK_MESSAGES_MAX = 4_096


def encode_pack(first: int, messages: Sequence[bytes]) -> bytes:
    """Return a pack of messages that are numbered one after the other."""
    assert 0 < len(messages) <= PACK_MESSAGES_MAX
    out = bytearray()
    write_varint(out, first)
    for message in messages:
        length = len(message)
        if length < 0x80:
            out.append(length)
        else:
            write_varint(out, length)
        out += message
    return bytes(out)


def decode_pack(pack: bytes) -> tuple[int, list[bytes]]:
    """Return the number of the first message, and the messages.  Raises RemoteProtocolError."""
    first, at = read_varint(pack, 0)
    end = len(pack)
    messages: list[bytes] = []
    while True:
        length, at = read_varint(pack, at)
        if at + length > end:
            raise RemoteProtocolError(f"a message of {length} bytes with {end - at} bytes left")
        messages.append(pack[at : at + length])
        at += length
        if at == end:
            return first, messages
        if len(messages) == PACK_MESSAGES_MAX:
            raise RemoteProtocolError(f"more than {PACK_MESSAGES_MAX} messages in one pack")
