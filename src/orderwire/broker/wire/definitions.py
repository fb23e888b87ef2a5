"""Reads the protocol's JSON message definitions into a small model.

The definitions are Apache Kafka's own (clients/src/main/resources/common/message), which the
kafka-python package carries: JSON with `//` comments.
"""

import importlib.resources
import json
import re
from typing import Any

import msgspec

_RESOURCES = "kafka.protocol.schemas.resources"
_COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)
_VERSION_MAX = 32_767


class Versions(msgspec.Struct, frozen=True):
    """A closed range of versions; empty when `first > last`."""

    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last


NONE = Versions(1, 0)


class Field(msgspec.Struct, frozen=True):
    """One field of a message."""

    name: str
    """In snake case."""
    type: str
    """A primitive's name or the name of a nested struct; the element's type for an array."""
    array: bool
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int
    default: str | None
    """As written in the definition; None when it has none."""
    flexible: Versions | None
    """Overrides the message's flexible versions (the request header's client id)."""
    fields: tuple["Field", ...]
    """Of the nested struct; empty for primitives."""

    def is_struct(self) -> bool:
        """Whether this is a nested struct or an array of them."""
        return self.type[0].isupper()


class Message(msgspec.Struct, frozen=True):
    """One message: a request, a response, a header, or data."""

    name: str
    api_key: int
    versions: Versions
    flexible: Versions
    fields: tuple[Field, ...]


def load_message(name: str) -> Message:
    """Read one definition by its name, such as ProduceRequest."""
    text = importlib.resources.files(_RESOURCES).joinpath(f"{name}.json").read_text("utf-8")
    raw: dict[str, Any] = json.loads(_COMMENT.sub("", text))
    shared = {struct["name"]: struct["fields"] for struct in raw.get("commonStructs", ())}
    return Message(
        name=raw["name"],
        api_key=raw.get("apiKey", -1),
        versions=_versions(raw["validVersions"]),
        flexible=_versions(raw["flexibleVersions"]),
        fields=tuple(_field(field, shared) for field in raw["fields"]),
    )


def snake_case(name: str) -> str:
    """`LastStableOffset` → `last_stable_offset`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _field(raw: dict[str, Any], shared: dict[str, Any]) -> Field:
    array = raw["type"].startswith("[]")
    kind = raw["type"].removeprefix("[]")
    nested = raw.get("fields", shared.get(kind, ()))
    default = raw.get("default")
    return Field(
        name=snake_case(raw["name"]),
        type=kind,
        array=array,
        versions=_versions(raw["versions"]),
        nullable=_versions(raw.get("nullableVersions", "none")),
        tagged=_versions(raw.get("taggedVersions", "none")),
        tag=raw.get("tag", -1),
        default=None if default is None else str(default),
        flexible=_versions(raw["flexibleVersions"]) if "flexibleVersions" in raw else None,
        fields=tuple(_field(field, shared) for field in nested),
    )


def _versions(text: str) -> Versions:
    if text == "none":
        return NONE
    if text.endswith("+"):
        return Versions(int(text[:-1]), _VERSION_MAX)
    first, _, last = text.partition("-")
    return Versions(int(first), int(last or first))
