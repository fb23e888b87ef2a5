"""Discovery messages drawn field by field from their definitions, so that no type is forgotten."""

from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from orderwire.discovery import messages
from orderwire.discovery.messages import COUNT_MAX, Message

ID_MAX = (1 << 64) - 1
KINDS: tuple[type[msgspec.Struct], ...] = tuple(
    each.cls
    for each in inspect.multi_type_info([Message])[0].types  # type: ignore[attr-defined]
)
"""Every message that can come from a peer."""


def values(small: int) -> st.SearchStrategy[Message]:
    """Any message at all; ids and counts are mostly below `small`, and sometimes extreme."""
    return st.one_of([_of(inspect.type_info(kind), small) for kind in KINDS])


def of_kind(kind: type[msgspec.Struct], small: int) -> st.SearchStrategy[Any]:
    """Any message of this type."""
    return _of(inspect.type_info(kind), small)


def _of(info: inspect.Type, small: int) -> st.SearchStrategy[Any]:
    match info:
        case inspect.IntType(ge=ge, le=le):
            low, high = ge or 0, ID_MAX if le is None else le
            usual = st.integers(max(low, -1), min(high, small))
            return st.one_of(usual, usual, st.sampled_from((low, high, min(high, COUNT_MAX))))
        case inspect.StrType():
            return st.sampled_from(("", "me", "server", "x" * 255, *(f"a{n}" for n in range(6))))
        case inspect.BytesType():
            return st.binary(max_size=9)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.EnumType(cls=kind):
            return st.sampled_from(list(kind))
        case inspect.VarTupleType(item_type=item):
            return st.lists(_of(item, small), max_size=3).map(tuple)
        case inspect.UnionType(types=types):
            return st.one_of([_of(each, small) for each in types])
        case inspect.StructType(cls=kind, fields=fields):
            return st.builds(kind, **{each.name: _of(each.type, small) for each in fields})
        case inspect.Metadata(type=inner):
            return _of(inner, small)
    raise AssertionError(f"no way to draw {info}; expected a type that {messages.__name__} uses")
