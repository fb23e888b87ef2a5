"""Writes the decoding function of one layout."""

from collections.abc import Callable

from orderwire.broker.wire.layout import FIXED, SIZES, Layout, Slot
from orderwire.broker.wire.versions import ELEMENT_BYTES, ELEMENT_SLACK_BYTES

_RESERVED = frozenset({"data", "at", "size", "n", "end", "stop", "tag", "tags"})

FunctionName = Callable[[Layout], str]
"""`produce_request_v3` for a layout."""

PythonType = Callable[[Slot], str]
"""The annotation of a field."""


def local(slot: Slot) -> str:
    """The local variable that holds this field."""
    name = slot.field.name
    return f"{name}_" if name in _RESERVED else name


def run_name(formats: list[str]) -> str:
    """A name for a run of formats: the formats themselves, with `t` for the truth value `?`."""
    return "".join(formats).replace("?", "t")


def decode_function(
    layout: Layout, names: FunctionName, types: PythonType, defaults: Callable[[Slot], str]
) -> list[str]:
    """The source of `_decode_<name>(data, at) -> (struct, at)`."""
    writer = _Decoder(names, types, layout.tagged)
    for slot in layout.tagged:
        writer.line(f"{local(slot)}: {types(slot)} = {defaults(slot)}")
    for slot in layout.plain:
        writer.slot(slot)
    if layout.flexible:
        writer.pend("B", "tags")
        writer.flush()
        writer.tags(layout.tagged)
    else:
        writer.flush()
    slots = (*layout.plain, *layout.tagged)
    arguments = ", ".join(f"{slot.field.name}={local(slot)}" for slot in slots)
    body = writer.lines
    if any("size" in line for line in body):
        body = ["    size = len(data)", *body]
    return [
        f"def _decode_{names(layout)}(data: memoryview, at: int) -> tuple[{layout.name}, int]:",
        *body,
        f"    return {layout.name}({arguments}), at",
    ]


class _Decoder:
    def __init__(self, names: FunctionName, types: PythonType, declared: tuple[Slot, ...]) -> None:
        self.lines: list[str] = []
        self._declared = declared
        self._names = names
        self._types = types
        self._indent = "    "
        self._formats: list[str] = []
        self._targets: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(self._indent + text)

    def pend(self, text: str, target: str) -> None:
        """Add a fixed-size value to the run."""
        self._formats.append(text)
        self._targets.append(target)

    def flush(self) -> None:
        """Read the run with one call."""
        if not self._formats:
            return
        if self._formats == ["B"]:
            self.line(f"{self._targets[0]} = data[at]")
            self.line("at += 1")
        else:
            name = run_name(self._formats)
            targets = ", ".join(self._targets) + ("," if len(self._targets) == 1 else "")
            self.line(f"({targets}) = _unpack_{name}(data, at)")
            self.line(f"at += {run_size(self._formats)}")
        self._formats = []
        self._targets = []

    def slot(self, slot: Slot) -> None:
        """Read one field."""
        if slot.fixed():
            self.pend(FIXED[slot.field.type], local(slot))
            return
        if slot.nested is not None and not slot.field.array:
            assert not slot.nullable, f"{slot.field.name}: nullable structs are not supported"
            self.flush()
            self.line(f"{local(slot)}, at = _decode_{self._names(slot.nested)}(data, at)")
            return
        self.pend(slot.prefix_format(), "n")
        self.flush()
        if slot.flexible:
            self.line("if n > 127:")
            self.line("    n, at = read_uvarint(data, at - 1)")
        if slot.field.array:
            self._array(slot)
        else:
            self._text_or_bytes(slot)

    def _null(self, slot: Slot) -> None:
        name = local(slot)
        self.line("if n == 0:" if slot.flexible else "if n < 0:")
        if slot.nullable:
            self.line(f"    {name} = None")
        else:
            self.line(f'    raise forbidden_null("{slot.field.name}")')

    def _text_or_bytes(self, slot: Slot) -> None:
        name = local(slot)
        if slot.nullable and slot not in self._declared:
            self.line(f"{name}: {self._types(slot)}")
        self._null(slot)
        lines = [
            "end = at + n - 1" if slot.flexible else "end = at + n",
            "if end > size:",
            f'    raise cut_short("{slot.field.name}", end, size)',
            f'{name} = str(data[at:end], "utf-8")'
            if slot.field.type == "string"
            else f"{name} = data[at:end]",
            "at = end",
        ]
        if slot.nullable:
            self.line("else:")
        for text in lines:
            self.line("    " * slot.nullable + text)

    def _array(self, slot: Slot) -> None:
        name = local(slot)
        if slot not in self._declared:
            self.line(f"{name}: {self._types(slot)}")
        self._null(slot)
        outer = self._indent
        if slot.nullable:
            self.line("else:")
            self._indent += "    "
        if slot.flexible:
            self.line("n -= 1")
        unit = slot.element_size_min()
        need = "n" if unit == 1 else f"n * {unit}"
        earnest = ELEMENT_BYTES.get(slot.field.type)
        if earnest is None:
            self.line(f"if {need} > size - at:")
        else:
            self.line(
                f"if {need} > size - at or n * {earnest} > size - at + {ELEMENT_SLACK_BYTES}:"
            )
        self.line(f'    raise too_many("{slot.field.name}", n, at, size)')
        if slot.field.type in SIZES:
            assert slot.field.type not in {"uuid"}, "arrays of UUIDs are not supported"
            code = FIXED[slot.field.type]
            self.line(f'{name} = list(unpack_from(f">{{n}}{code}", data, at))')
            self.line(f"at += {need}")
        else:
            item = f"{slot.field.name}_item"
            self.line(f"{name} = []")
            self.line("for _ in range(n):")
            if slot.nested is not None:
                self.line(f"    {item}, at = _decode_{self._names(slot.nested)}(data, at)")
            else:
                reader = "read_compact_string" if slot.flexible else "read_string"
                self.line(f"    {item}, at = {reader}(data, at)")
            self.line(f"    {name}.append({item})")
        self._indent = outer

    def tags(self, tagged: tuple[Slot, ...]) -> None:
        """Read the tagged fields; skip those that this version does not know."""
        self.line("if tags:")
        if not tagged:
            self.line("    at = skip_tags(data, at - 1)")
            return
        self.line("    tags, at = read_uvarint(data, at - 1)")
        self.line("    for _ in range(tags):")
        self._indent += "        "
        self.line("tag, at = read_uvarint(data, at)")
        self.line("n, at = read_uvarint(data, at)")
        self.line("stop = at + n")
        self.line("if stop > size:")
        self.line('    raise cut_short("a tagged field", stop, size)')
        keyword = "if"
        for slot in tagged:
            self.line(f"{keyword} tag == {slot.field.tag}:")
            self._indent += "    "
            self.slot(slot)
            self.flush()
            self._indent = self._indent[:-4]
            keyword = "elif"
        self.line("at = stop")
        self._indent = self._indent[:-8]


def run_size(formats: list[str]) -> int:
    """Bytes of a run."""
    sizes = {text: SIZES[kind] for kind, text in FIXED.items()} | {"B": 1}
    return sum(sizes[text] for text in formats)
