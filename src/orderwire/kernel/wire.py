"""Variable-length integers, the alphabet of Orderwire's own PDUs (LEB128)."""

from orderwire.kernel.errors import RemoteProtocolError

VARINT_BYTES_MAX = 10


def write_varint(out: bytearray, value: int) -> None:
    """Append a non-negative integer below 2⁷⁰, seven bits a byte, lowest first."""
    assert 0 <= value < 1 << 70, f"varint out of range: {value}"
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def varint_bytes(value: int) -> int:
    """How many bytes `write_varint` needs for this value."""
    return max(1, (value.bit_length() + 6) // 7)


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the integer at this offset and the offset behind it.

    Raises RemoteProtocolError when it does not end inside `data` or is longer than ten bytes.
    """
    try:
        byte = data[at]
        if byte < 0x80:
            return byte, at + 1
        value = byte & 0x7F
        shift = 7
        for index in range(at + 1, at + VARINT_BYTES_MAX):
            byte = data[index]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, index + 1
            shift += 7
    except IndexError:
        raise RemoteProtocolError(
            f"varint at offset {at} runs past the end ({len(data)} bytes)"
        ) from None
    raise RemoteProtocolError(f"varint at offset {at} is longer than {VARINT_BYTES_MAX} bytes")
