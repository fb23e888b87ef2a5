"""Random messages of every API, version and direction against two independent codecs."""

import contextlib
import dataclasses
import datetime
import enum
import importlib
import io
import types
import typing
import uuid
from collections.abc import Iterator
from random import Random

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import kafka.protocol.sasl
import msgspec
import pytest
from kio.serial import entity_reader, entity_writer

from orderwire.broker.wire.apis import APIS, Api
from orderwire.broker.wire.definitions import snake_case
from orderwire.broker.wire.generated.api_versions import (
    ApiVersionsResponse,
    encode_api_versions_response,
)
from orderwire.broker.wire.parts import Buffer
from orderwire.kernel.errors import LocalProtocolError, RemoteProtocolError

_KAFKA_PYTHON = (
    kafka.protocol.admin,
    kafka.protocol.consumer,
    kafka.protocol.metadata,
    kafka.protocol.producer,
    kafka.protocol.sasl,
)
_MESSAGES_PER_CASE = 4

CASES = [
    pytest.param(api, version, direction, id=f"{api.name}-v{version}-{direction}")
    for api in APIS
    for version in range(api.oldest, api.newest + 1)
    for direction in ("request", "response")
]


def message_class(api: Api, direction: str) -> type[msgspec.Struct]:
    module = importlib.import_module(f"orderwire.broker.wire.generated.{snake_case(api.name)}")
    return getattr(module, f"{api.name}{direction.capitalize()}")


def random_message(kind: type[msgspec.Struct], chance: Random) -> msgspec.Struct:
    """Fill every field, whichever versions have it."""
    hints = typing.get_type_hints(kind)
    return kind(**{name: _random_value(name, hints[name], chance) for name in hints})


def _random_value(name: str, hint: typing.Any, chance: Random) -> typing.Any:
    arguments = typing.get_args(hint)
    # Nulls that some version does not allow are refused by its encoder; then another is drawn.
    if type(None) in arguments and name in _OFTEN_NULL and chance.random() < 0.2:
        return None
    if isinstance(hint, types.UnionType):
        options = [each for each in arguments if each is not type(None)]
        if set(options) >= set(typing.get_args(Buffer)):
            return chance.randbytes(chance.choice((0, 3, 126, 127, 128, 20_000)))
        return _random_value(name, options[0], chance)
    if typing.get_origin(hint) is not None:
        length = chance.choice((0, 1, 1, 2, 130 if chance.random() < 0.1 else 3))
        return [_random_value(name, arguments[0], chance) for _ in range(length)]
    if hint is bool:
        return chance.random() < 0.5
    if hint is str:
        return "".join(chance.choices("abcΔ한é", k=chance.choice((0, 1, 7, 60, 200))))
    if hint is bytes:
        return chance.randbytes(16)
    if hint is int:
        return _random_int(name, chance)
    return random_message(hint, chance)


_OFTEN_NULL = {
    "transactional_id",
    "records",
    "error_message",
    "rack",
    "group_instance_id",
    "committed_metadata",
    "aborted_transactions",
    "client_software",
    "configuration_keys",
    "assignments",
    "reason",
    "cluster_id",
}


def _random_int(name: str, chance: Random) -> int:
    if name.endswith("error_code"):
        return chance.randint(-1, 100)
    if name.endswith(("_ms", "timestamp")):
        return chance.choice((0, 1, 60_000, 2**31 - 1))
    # The smallest type of any field, so that a value fits wherever the name is used.
    return chance.choice((-1, 0, 1, chance.randint(-128, 127)))


def encode_any(kind: type[msgspec.Struct], api: Api, direction: str, version: int, chance: Random):
    """A random message that this version can carry, and its bytes."""
    encode = api.encode_request if direction == "request" else api.encode_response
    for _ in range(50):
        message = random_message(kind, chance)
        try:
            return message, encode(message, version)
        except AssertionError:
            continue  # a null that this version does not allow
    raise AssertionError(f"no encodable {kind.__name__} v{version}")


def flat(ours: typing.Any, theirs: typing.Any, where: str = "") -> Iterator[str]:
    """Name every leaf in which kio's message differs from ours."""
    if isinstance(theirs, tuple):
        if len(ours) != len(theirs):
            yield f"{where}: {len(ours)} entries, not {len(theirs)}"
        for index, (a, b) in enumerate(zip(ours, theirs, strict=False)):
            yield from flat(a, b, f"{where}[{index}]")
    elif dataclasses.is_dataclass(theirs):
        for name in (field.name for field in dataclasses.fields(theirs)):
            own = name if hasattr(ours, name) else f"{name}_ms"
            yield from flat(getattr(ours, own), getattr(theirs, name), f"{where}.{own}")
    elif _plain(theirs) != _plain(ours):
        yield f"{where}: {ours!r} is not {theirs!r}"


def _plain(value: typing.Any) -> typing.Any:
    match value:
        case None:
            return None
        case bool():
            return int(value)
        case enum.IntEnum():
            return int(value)
        case datetime.timedelta():
            return round(value.total_seconds() * 1000)
        case datetime.datetime():
            return round(value.timestamp() * 1000)
        case uuid.UUID():
            return value.bytes
        case memoryview() | bytes():
            return bytes(value)
    return value


@pytest.mark.parametrize(("api", "version", "direction"), CASES)
def test_kio_reads_and_writes_the_same_bytes(api: Api, version: int, direction: str) -> None:
    kind = message_class(api, direction)
    path = f"kio.schema.{snake_case(api.name)}.v{version}.{direction}"
    theirs = getattr(importlib.import_module(path), kind.__name__)
    read, write = entity_reader(theirs), entity_writer(theirs)
    decode = api.decode_request if direction == "request" else api.decode_response
    encode = api.encode_request if direction == "request" else api.encode_response
    chance = Random(f"{api.name}/{version}/{direction}")
    for _ in range(_MESSAGES_PER_CASE):
        message, data = encode_any(kind, api, direction, version, chance)
        other, size = read(data, 0)
        assert size == len(data)
        assert list(flat(message, other)) == []
        out = io.BytesIO()
        write(out, other)
        assert out.getvalue() == data
        padded = memoryview(b"\x00\x00" + data + b"\x07")
        again, end = decode(padded, 2, version)
        assert end == len(data) + 2
        assert encode(again, version) == data


@pytest.mark.parametrize(("api", "version", "direction"), CASES)
def test_kafka_python_reads_and_writes_the_same_bytes(
    api: Api, version: int, direction: str
) -> None:
    kind = message_class(api, direction)
    theirs = next(
        getattr(module, kind.__name__) for module in _KAFKA_PYTHON if hasattr(module, kind.__name__)
    )
    chance = Random(f"{api.name}/{version}/{direction}/kafka-python")
    for _ in range(_MESSAGES_PER_CASE):
        message, data = encode_any(kind, api, direction, version, chance)
        if kind is ApiVersionsResponse:  # with an error, kafka-python reads version 0
            data = encode_api_versions_response(
                msgspec.structs.replace(message, error_code=0), version
            )
        other = theirs.decode(data, version=version)
        other._header = None  # its constructor does that, its decoder forgets it
        assert bytes(other.encode(version=version)) == data


@pytest.mark.parametrize(("api", "version", "direction"), CASES)
def test_no_cut_or_flip_escapes_the_decoder(api: Api, version: int, direction: str) -> None:
    """Malformed bytes raise RemoteProtocolError and nothing else."""
    kind = message_class(api, direction)
    decode = api.decode_request if direction == "request" else api.decode_response
    chance = Random(f"{api.name}/{version}/{direction}/malformed")
    _, data = min(
        (encode_any(kind, api, direction, version, chance) for _ in range(3)),
        key=lambda pair: (len(pair[1]) < 20, len(pair[1])),
    )
    for cut in {
        0,
        1,
        len(data) // 2,
        len(data) - 1,
        *(chance.randrange(len(data) + 1) for _ in range(20)),
    }:
        if 0 <= cut < len(data):
            with pytest.raises(RemoteProtocolError):
                decode(memoryview(data[:cut]), 0, version)
    for _ in range(30):
        broken = bytearray(data or b"\x00")
        for _ in range(chance.randint(1, 4)):
            broken[chance.randrange(len(broken))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        with contextlib.suppress(RemoteProtocolError):
            decode(memoryview(broken), 0, version)


def test_versions_outside_the_table_are_refused_by_name() -> None:
    for api in APIS:
        for version in (api.oldest - 1, api.newest + 1):
            with pytest.raises(RemoteProtocolError, match=f"{api.name}Request version {version}"):
                api.decode_request(memoryview(bytes(100)), 0, version)
            with pytest.raises(LocalProtocolError, match=f"{api.name}Response version {version}"):
                api.encode_response(message_class(api, "response")(), version)
