"""What may be asked of ZooKeeper, and what it answers: of a server, or of a model of one."""

from enum import Enum
from typing import TypeAlias

import msgspec

ANY_VERSION = -1
"""Whatever the znode's version is."""


class Create(msgspec.Struct, frozen=True):
    """Make a znode: an ephemeral one goes with the session, `sequence` numbers its name."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


class Set(msgspec.Struct, frozen=True):
    """Replace what a znode holds, if it has this version."""

    path: str
    data: bytes
    version: int = ANY_VERSION


class Delete(msgspec.Struct, frozen=True):
    """Delete a znode without children, if it has this version."""

    path: str
    version: int = ANY_VERSION


class Check(msgspec.Struct, frozen=True):
    """Go on only if the znode is there with this version; in a transaction alone."""

    path: str
    version: int = ANY_VERSION


Operation: TypeAlias = Create | Set | Delete | Check


class Multi(msgspec.Struct, frozen=True):
    """All of these or none, at one moment."""

    operations: tuple[Operation, ...]


class Get(msgspec.Struct, frozen=True):
    """Read what a znode holds; `watch`: tell once when it is changed or deleted."""

    path: str
    watch: bool = False


class Exists(msgspec.Struct, frozen=True):
    """Ask whether a znode is there; `watch`: tell once when it is made, changed or deleted."""

    path: str
    watch: bool = False


class Children(msgspec.Struct, frozen=True):
    """Read the names below a znode; `watch`: tell once when one comes or goes."""

    path: str
    watch: bool = False


Command: TypeAlias = Create | Set | Delete | Multi | Get | Exists | Children


class Failure(Enum):
    """Why a command was not carried out."""

    NO_ZNODE = "no znode of that name"
    ZNODE_EXISTS = "a znode of that name is there"
    BAD_VERSION = "the znode has another version"
    NOT_EMPTY = "the znode has children"
    NO_CHILDREN = "an ephemeral znode has no children"


class MultiFailure(msgspec.Struct, frozen=True):
    """None of a transaction was done, since this operation of it, from 0, could not be."""

    index: int
    failure: Failure


class Znode(msgspec.Struct, frozen=True):
    """What a znode holds."""

    data: bytes
    version: int
    """How often its data were replaced."""
    created_zxid: int
    """The transaction that made it: two of one path have different ones."""
    created_ms: int
    """Wall clock of the server that led the ensemble, since 1970."""
    owner: int = 0
    """The session that it goes with; 0 when it stays."""


Made: TypeAlias = str | int | None
"""What an operation of a transaction answers: Create the path, Set the new version."""
