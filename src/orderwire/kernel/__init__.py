"""The vocabulary: ids, time, effects, the core contract.  Imports nothing of ours."""

from orderwire.kernel.chance import stream
from orderwire.kernel.core import Core
from orderwire.kernel.effects import Broadcast, Effect, Effects, Indicate, Send, Via
from orderwire.kernel.errors import LocalProtocolError, OrderwireError, RemoteProtocolError
from orderwire.kernel.ids import (
    GROUP_SIZE_MAX,
    Destinations,
    ProcessId,
    destinations,
    members_of,
)
from orderwire.kernel.inputs import (
    Input,
    InputsHeader,
    Received,
    Submitted,
    Woken,
    read_inputs,
    submitted,
    write_input,
)
from orderwire.kernel.parsing import UNREADABLE, parsed
from orderwire.kernel.probes import probe
from orderwire.kernel.time import NS_PER_MS, NS_PER_S, NS_PER_US, Instant, exact_ns, ms, us
from orderwire.kernel.wire import read_varint, varint_bytes, write_varint

__all__ = [
    "GROUP_SIZE_MAX",
    "NS_PER_MS",
    "NS_PER_S",
    "NS_PER_US",
    "UNREADABLE",
    "Broadcast",
    "Core",
    "Destinations",
    "Effect",
    "Effects",
    "Indicate",
    "Input",
    "InputsHeader",
    "Instant",
    "LocalProtocolError",
    "OrderwireError",
    "ProcessId",
    "Received",
    "RemoteProtocolError",
    "Send",
    "Submitted",
    "Via",
    "Woken",
    "destinations",
    "exact_ns",
    "members_of",
    "ms",
    "parsed",
    "probe",
    "read_inputs",
    "read_varint",
    "stream",
    "submitted",
    "us",
    "varint_bytes",
    "write_input",
    "write_varint",
]
