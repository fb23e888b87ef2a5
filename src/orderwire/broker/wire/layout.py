"""What a message looks like in one version: the same for every version with the same layout."""

import msgspec

from orderwire.broker.wire.definitions import Field, Message, Versions

FIXED = {"bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uuid": "16s"}
"""Fixed-size types and their struct formats (big-endian)."""

SIZES = {"bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uuid": 16}
"""Their sizes in bytes."""


class Slot(msgspec.Struct, frozen=True):
    """One field as one version has it."""

    field: Field
    flexible: bool
    nullable: bool
    nested: "Layout | None"

    def fixed(self) -> bool:
        """Whether its size never changes."""
        return not self.field.array and self.field.type in FIXED

    def size_min(self) -> int:
        """The fewest bytes it takes."""
        if self.fixed():
            return SIZES[self.field.type]
        if self.nested is not None and not self.field.array:
            return self.nested.size_min()
        return 1 if self.flexible else self.prefix_size()

    def prefix_size(self) -> int:
        """Bytes of a length or count in a version that is not flexible."""
        return 2 if self.field.type == "string" and not self.field.array else 4

    def prefix_format(self) -> str:
        """The struct format of the length's first part: a varint's first byte when flexible."""
        if self.flexible:
            return "B"
        return "h" if self.prefix_size() == 2 else "i"

    def element_size_min(self) -> int:
        """The fewest bytes an array's element takes: what a count is checked against."""
        if self.nested is not None:
            return self.nested.size_min()
        if self.field.type in SIZES:
            return SIZES[self.field.type]
        return 1 if self.flexible else 2


class Layout(msgspec.Struct, frozen=True):
    """A struct as one or more versions have it."""

    name: str
    flexible: bool
    plain: tuple[Slot, ...]
    tagged: tuple[Slot, ...]

    def size_min(self) -> int:
        """The fewest bytes it takes."""
        return sum(slot.size_min() for slot in self.plain) + self.flexible


def layout_of(message: Message, version: int) -> Layout:
    """Resolve every field of a message for one version."""
    return _layout(message.name, message.fields, message.flexible, version)


def _layout(name: str, fields: tuple[Field, ...], flexible: Versions, version: int) -> Layout:
    plain: list[Slot] = []
    tagged: list[Slot] = []
    for field in fields:
        if version not in field.versions and version not in field.tagged:
            continue
        slot = Slot(
            field=field,
            flexible=version in (field.flexible or flexible),
            nullable=version in field.nullable,
            nested=(
                _layout(field.type, field.fields, flexible, version) if field.is_struct() else None
            ),
        )
        (tagged if version in field.tagged else plain).append(slot)
    return Layout(
        name=name,
        flexible=version in flexible,
        plain=tuple(plain),
        tagged=tuple(sorted(tagged, key=lambda slot: slot.field.tag)),
    )
