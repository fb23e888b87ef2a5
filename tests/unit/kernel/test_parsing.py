"""Whatever bytes come, each decoder raises the one error that its caller drops and counts."""

import ast
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from orderwire.aio.discovery_frames import _MAGIC, Hello
from orderwire.broker.log.memory import MemoryStorage
from orderwire.broker.log.sealed import seal, unseal
from orderwire.broker.producer_ids import _FILE as _IDS
from orderwire.broker.producer_ids import ProducerIds, StateDamaged
from orderwire.broker.topics import _FILE as _TOPICS
from orderwire.broker.topics import TopicsDamaged, TopicSettings, TopicStore
from orderwire.cli.bootstrap_state import State
from orderwire.discovery import map_codec, messages
from orderwire.discovery.map_codec import decode_delta, decode_map, decode_participant, lookup
from orderwire.discovery.messages import MapRecord
from orderwire.discovery.summaries import decode_summary
from orderwire.kernel import LocalProtocolError, RemoteProtocolError, read_inputs
from orderwire.lab.experiment import read_experiment
from orderwire.participant import control
from orderwire.sim.scenario import read_scenario
from orderwire.sim.vectors import VectorError, _read_object

SOURCE = Path(__file__).parents[3] / "src" / "orderwire"
DEEP = b"\x91" * 5_000 + b"\xc0"
"""MessagePack: arrays in arrays."""
NOT_UTF8 = b"\xa1\xff"
DEEP_JSON = b'{"x":' + b"[" * 100_000
NOT_UTF8_JSON = b'{"\xff":1,"epoch":"\xff","format":"\xff"}'

_HEAD = msgspec.msgpack.encode([1, ["g", "", [], []], ["/", *[[]] * 9]])[1:]
_FOREIGN = b"\x91\x96\xa1d\x01\x01\x01\xc4\x00" + DEEP + b"\x00"


def _map(body: bytes) -> bytes:
    return bytes((map_codec._PLAIN,)) + body


def _records(decode: Callable[[MapRecord], Any]) -> list[Callable[[bytes], Any]]:
    whole = MapRecord(1, map_codec.encode_map(map_codec.Map.of(map_codec.ParticipantData("g"))))
    return [
        lambda data: decode(MapRecord(1, data)),
        lambda data: decode(MapRecord(1, whole.full, (data,))),
    ]


MESSAGE_PACK: dict[str, Callable[[bytes], Any]] = {
    "messages": messages.decode,
    "hello": lambda data: Hello.decode(_MAGIC + data),
    "control": control.decode,
    "map": lambda data: decode_map(_map(data)),
    "participant": lambda data: decode_participant(_map(data)),
    "delta": lambda data: decode_delta(_map(data)),
    "lookup": lambda data: lookup(MapRecord(1, _map(data)), lambda _: True),
    "summary": lambda data: decode_summary(MapRecord(1, data)),
}
HOSTILE = {
    "nested": DEEP,
    "not UTF-8": NOT_UTF8,
    "a message with a nested field too many": b"\x94\x1a\x01\x01" + DEEP,
    "a message with text that is not UTF-8": b"\x94\x01\xa1\xff\xa1a\x00",
    "a control message with a nested field too many": b"\x93\x02\x01" + DEEP,
    "a control message with text that is not UTF-8": b"\x94\x01\x01\xa1\xff\xa1a",
    "a hello with a nested field too many": b"\x97\x01\xa1d\xa1a\xa1b\x01\x01" + DEEP,
    "a MAP with a nested foreign entry": b"\x95" + _HEAD + _FOREIGN,
    "a summary with a nested participant": b"\x97\x01\x01\x01\xc4\x00\x90\xa0" + DEEP,
    "a change with a nested participant": b"\x98\x02" + DEEP,
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("decode", MESSAGE_PACK.values(), ids=MESSAGE_PACK)
def test_no_bytes_of_a_peer_raise_another_error(
    decode: Callable[[bytes], Any], hostile: bytes
) -> None:
    """msgspec skips fields that it does not know, and counts their nesting all the same."""
    with pytest.raises(RemoteProtocolError):
        decode(hostile)


def _file(name: str, read: Callable[[Path], Any]) -> Callable[[bytes, Path], Any]:
    def from_file(data: bytes, folder: Path) -> Any:
        (folder / name).write_bytes(data)
        return read(folder / name)

    return from_file


def _stored(read: Callable[[MemoryStorage], Any], name: str) -> Callable[[bytes, Path], Any]:
    def from_storage(data: bytes, _: Path) -> Any:
        files = MemoryStorage()
        files.replace_file(name, data)
        return read(files)

    return from_storage


def _topics(files: MemoryStorage) -> TopicStore:
    return TopicStore(files, TopicSettings(), Random(1))


FILES: dict[str, tuple[Callable[[bytes, Path], Any], type[Exception]]] = {
    "state of a server": (_file("state", State.read), LocalProtocolError),
    "scenario": (_file("s.json", read_scenario), ValueError),
    "scenario in TOML": (_file("s.toml", read_scenario), ValueError),
    "worked scenario": (_file("s.json", _read_object), VectorError),
    "header of inputs": (lambda data, _: read_inputs([data]), ValueError),
    "experiment": (lambda data, _: read_experiment(data, "x"), ValueError),
    "topics": (
        _stored(lambda files: TopicStore(files, TopicSettings(), Random(1)), _TOPICS),
        TopicsDamaged,
    ),
    "producer ids": (_stored(lambda files: ProducerIds.open(files, Random(1)), _IDS), StateDamaged),
}


@pytest.mark.parametrize("data", [DEEP_JSON, NOT_UTF8_JSON, b"x = " + b"[" * 100_000, b"\xff"])
@pytest.mark.parametrize(("read", "fault"), FILES.values(), ids=FILES)
def test_no_file_raises_another_error(
    read: Callable[[bytes, Path], Any], fault: type[Exception], data: bytes, tmp_path: Path
) -> None:
    with pytest.raises(fault) as raised:
        read(data, tmp_path)
    assert not isinstance(raised.value, UnicodeDecodeError)  # which is a ValueError, too


def test_a_sealed_file_that_is_nested_is_none() -> None:
    class Kept(msgspec.Struct, array_like=True):
        number: int

    class Nested(msgspec.Struct, array_like=True):
        number: int
        more: msgspec.Raw

    assert unseal(seal(Nested(1, msgspec.Raw(DEEP))), Kept) is None


def test_errors_of_msgspec_are_named_in_one_place() -> None:
    """Who catches `MsgspecError` alone lets UnicodeDecodeError and RecursionError pass."""
    named = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in {"MsgspecError", "DecodeError"}
    ]
    assert len(named) == 1
    assert named[0].startswith("kernel/parsing.py")
