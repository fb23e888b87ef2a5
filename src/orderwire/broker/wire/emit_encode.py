"""Writes the encoding function of one layout."""

from collections.abc import Callable

from orderwire.broker.wire.emit_decode import FunctionName, run_name
from orderwire.broker.wire.layout import FIXED, SIZES, Layout, Slot


def encode_function(
    layout: Layout, names: FunctionName, part: str, defaults: Callable[[Slot], str]
) -> list[str]:
    """The source of `_encode_<name>(message, out)`; `part` is what `out` holds."""
    writer = _Encoder(names, part)
    for slot in layout.plain:
        writer.slot(slot)
    if layout.tagged:
        writer.flush()
        writer.tags(layout.tagged, defaults)
    elif layout.flexible:
        writer.pend("x", None)
    writer.flush()
    body = writer.lines
    pushed = sum("push(" in line for line in body)
    if pushed > 1:
        body = ["    push = out.append", *body]
    else:
        body = [line.replace("push(", "out.append(") for line in body]
    head = f"def _encode_{names(layout)}(message: {layout.name}, out: list[{part}]) -> None:"
    return [head, *(body or ["    pass"])]


class _Encoder:
    def __init__(self, names: FunctionName, part: str) -> None:
        self.lines: list[str] = []
        self._names = names
        self._part = part
        self._indent = "    "
        self._push = "push"
        self._out = "out"
        self._formats: list[str] = []
        self._values: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(self._indent + text)

    def pend(self, text: str, value: str | None) -> None:
        """Add a fixed-size value (or a zero byte, `x`) to the run."""
        self._formats.append(text)
        if value is not None:
            self._values.append(value)

    def flush(self) -> None:
        """Write the run with one call."""
        if not self._formats:
            return
        if not self._values:
            zeros = "\\x00" * len(self._formats)
            self.line(f'{self._push}(b"{zeros}")')
        else:
            name = run_name(self._formats)
            self.line(f"{self._push}(_pack_{name}({', '.join(self._values)}))")
        self._formats = []
        self._values = []

    def slot(self, slot: Slot) -> None:
        """Write one field."""
        value = f"message.{slot.field.name}"
        if slot.fixed():
            self.pend(FIXED[slot.field.type], value)
        elif slot.nested is not None and not slot.field.array:
            self.flush()
            self.line(f"_encode_{self._names(slot.nested)}({value}, {self._out})")
        elif slot.field.array:
            self._array(slot, value)
        elif slot.field.type == "string":
            self._text(slot, value)
        else:
            self._bytes(slot, value)

    def _length(self, slot: Slot, expression: str) -> None:
        """Write a length or count; `expression` is −1 for null."""
        if slot.flexible:
            self.flush()
            self.line(f"n = {_plus_one(expression)}")
            self.line(f"{self._push}(UVARINT[n] if n < 128 else uvarint(n))")
        else:
            self.pend(slot.prefix_format(), expression)
            self.flush()

    def _text(self, slot: Slot, value: str) -> None:
        if slot.nullable:
            self.line(f'text = b"" if {value} is None else {value}.encode()')
            self._length(slot, f"-1 if {value} is None else len(text)")
        else:
            if _optional(slot):
                self.line(f"assert {value} is not None")
            self.line(f"text = {value}.encode()")
            self._length(slot, "len(text)")
        self.line(f"{self._push}(text)")

    def _bytes(self, slot: Slot, value: str) -> None:
        self.line(f"body = {value}")
        if slot.nullable:
            self.line("if body is None:")
            self.line('    body = b""')
            self.line(f"    n = {0 if slot.flexible else -1}")
            self.line("else:")
            self.line("    n = len(body) + 1" if slot.flexible else "    n = len(body)")
            if slot.flexible:
                self.flush()
                self.line(f"{self._push}(UVARINT[n] if n < 128 else uvarint(n))")
            else:
                self.pend(slot.prefix_format(), "n")
                self.flush()
        else:
            if _optional(slot):
                self.line("assert body is not None")
            self._length(slot, "len(body)")
        self.line(f"{self._push}(body)")

    def _array(self, slot: Slot, value: str) -> None:
        items = f"{slot.field.name}_items"
        self.line(f"{items} = {value}")
        outer = self._indent
        if slot.nullable:
            self.flush()
            self.line(f"if {items} is None:")
            null = 'b"\\x00"' if slot.flexible else 'b"\\xff\\xff\\xff\\xff"'
            self.line(f"    {self._push}({null})")
            self.line("else:")
            self._indent += "    "
        elif _optional(slot):
            self.line(f"assert {items} is not None")
        self._length(slot, f"len({items})")
        if slot.field.type in SIZES:
            code = FIXED[slot.field.type]
            self.line(f'{self._push}(pack(f">{{len({items})}}{code}", *{items}))')
        else:
            item = f"{slot.field.name}_item"
            self.line(f"for {item} in {items}:")
            if slot.nested is not None:
                self.line(f"    _encode_{self._names(slot.nested)}({item}, {self._out})")
            else:
                self.line(f"    text = {item}.encode()")
                if slot.flexible:
                    self.line("    n = len(text) + 1")
                    self.line(f"    {self._push}(UVARINT[n] if n < 128 else uvarint(n))")
                else:
                    self.line(f"    {self._push}(_pack_h(len(text)))")
                self.line(f"    {self._push}(text)")
        self._indent = outer

    def tags(self, tagged: tuple[Slot, ...], defaults: Callable[[Slot], str]) -> None:
        """Write the tagged fields that differ from their defaults."""
        conditions = [_differs(slot, defaults(slot)) for slot in tagged]
        self.line(f"if {' or '.join(conditions)}:")
        self._indent += "    "
        self.line("tags: list[bytes] = []")
        for slot, condition in zip(tagged, conditions, strict=True):
            if len(tagged) > 1:
                self.line(f"if {condition}:")
                self._indent += "    "
            field = f"field_{slot.field.tag}"
            self.line(f"{field}: list[{self._part}] = []")
            self._push, self._out = f"{field}.append", field
            self.slot(slot)
            self.flush()
            self._push, self._out = "push", "out"
            self.line(f"tags.append(tagged({slot.field.tag}, {field}))")
            if len(tagged) > 1:
                self._indent = self._indent[:-4]
        self.line("push(uvarint(len(tags)))")
        self.line("out.extend(tags)")
        self._indent = self._indent[:-4]
        self.line("else:")
        self.line('    push(b"\\x00")')


def _optional(slot: Slot) -> bool:
    """Whether the attribute's type allows None although this version does not."""
    return slot.field.nullable.first <= slot.field.nullable.last


def _differs(slot: Slot, default: str) -> str:
    value = f"message.{slot.field.name}"
    if slot.field.array:
        return value
    if default in {"None", "False", "True"}:
        return f"{value} is not {default}"
    return f"{value} != {default}"


def _plus_one(expression: str) -> str:
    if expression.startswith("-1 if "):
        return expression.replace("-1 if", "0 if", 1) + " + 1"
    return f"{expression} + 1"
