"""Recorded inputs: what is written is read back, and what is wrong is named."""

import msgspec
import pytest

from orderwire.kernel import (
    Destinations,
    InputsHeader,
    ProcessId,
    Received,
    Woken,
    read_inputs,
    submitted,
    write_input,
)
from orderwire.ordering.pdu import Lost, Multicast, OrderingCommand


def test_written_inputs_are_read_back() -> None:
    command = Multicast(b"\x00payload", Destinations(1 << 100 | 5))
    records = [submitted(10, command), Received(11, 3, b"\xff\x00"), Woken(12)]
    header = InputsHeader(
        family="ordering", protocol="fifo", me=2, settings=msgspec.Raw(b'{"members":3}')
    )
    lines = [write_input(record) for record in (header, *records)]
    again, inputs = read_inputs(lines)
    assert again.protocol == "fifo"
    assert bytes(again.settings) == b'{"members":3}'
    first, *rest = inputs
    assert rest == records[1:]
    assert msgspec.json.decode(first.command, type=OrderingCommand) == command  # type: ignore[union-attr]


def test_every_ordering_command_survives() -> None:
    lost = Lost(ProcessId(4), 7, 9)
    assert msgspec.json.decode(submitted(0, lost).command, type=OrderingCommand) == lost


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([], "line 1 is no header"),
        ([b'{"kind":"wake","now":3}'], "line 1 is no header"),
        ([b'{"family":"ordering","protocol":"x","me":0,"version":9}'], "version 9"),
        ([b'{"family":"o","protocol":"x","me":0}', b'{"kind":"nap"}'], "line 2 is no recorded"),
    ],
)
def test_a_file_that_is_none_is_refused(lines: list[bytes], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        list(read_inputs(lines)[1])
