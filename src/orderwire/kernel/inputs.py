"""A recorded process: what its core was fed, in order, so that any runtime's run can be replayed.

Both runtimes write this format and `orderwire sim replay --inputs FILE` reads it.  A file is JSON
lines: first one `InputsHeader`, then one `Input` per call of the core, in the order of the calls.
A runtime records an input just before it makes the call; effects are not recorded, because the
core returns the same ones again.

    {"format":"orderwire.inputs","version":1,"family":"ordering","protocol":"jang-delta","me":0,…}
    {"kind":"submit","now":1000,"command":{"type":"Multicast","payload":"aGk=","destinations":6}}
    {"kind":"receive","now":2000,"source":1,"data":"AAEC"}
    {"kind":"wake","now":3000}

`command` is the JSON of the family's tagged command struct, `data` the encoded PDU in base64: what
the codec was given, also when it refused it.
"""

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec

from orderwire.kernel.parsing import parsed

FORMAT = "orderwire.inputs"
VERSION = 1


class InputsHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """First line: which core to build before feeding it."""

    format: str = FORMAT
    version: int = VERSION
    family: str
    """Which catalog knows the protocol, e.g. `ordering`."""
    protocol: str
    """Catalog name."""
    me: int
    """Process id of the recorded process."""
    settings: msgspec.Raw = msgspec.Raw(b"{}")
    """JSON of the family's settings."""


class Submitted(msgspec.Struct, frozen=True, tag="submit", tag_field="kind", gc=False):
    """The application's command; `command` is its JSON."""

    now: int
    command: msgspec.Raw


class Received(msgspec.Struct, frozen=True, tag="receive", tag_field="kind", gc=False):
    """A PDU of `source`, encoded, as the network brought it."""

    now: int
    source: int
    data: bytes


class Woken(msgspec.Struct, frozen=True, tag="wake", tag_field="kind", gc=False):
    """A timer."""

    now: int


Input: TypeAlias = Submitted | Received | Woken

_encoder = msgspec.json.Encoder()
_header = msgspec.json.Decoder(InputsHeader)
_input: msgspec.json.Decoder[Input] = msgspec.json.Decoder(Submitted | Received | Woken)


def submitted(now: int, command: msgspec.Struct) -> Submitted:
    """Return the record of this command."""
    return Submitted(now, msgspec.Raw(_encoder.encode(command)))


def write_input(record: InputsHeader | Input) -> bytes:
    """Return the record's line, with its line end."""
    return _encoder.encode(record) + b"\n"


def read_inputs(lines: Iterable[bytes]) -> tuple[InputsHeader, Iterator[Input]]:
    """Parse a recorded file.  Raises ValueError that names the line and what is wrong with it."""
    numbered = enumerate(lines, start=1)
    _, first = next(numbered, (1, b""))
    header = parsed(_header.decode, first, "line 1 is no header of recorded inputs", ValueError)
    if (header.format, header.version) != (FORMAT, VERSION):
        raise ValueError(
            f"recorded inputs of {header.format!r} version {header.version}; "
            f"this program reads {FORMAT!r} version {VERSION}"
        )
    return header, _parse(numbered)


def _parse(numbered: Iterable[tuple[int, bytes]]) -> Iterator[Input]:
    for number, line in numbered:
        yield parsed(_input.decode, line, f"line {number} is no recorded input", ValueError)
