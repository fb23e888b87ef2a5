"""A model of ZooKeeper's tree: versions, sessions, numbered names, one-shot watches, transactions.

It answers the commands of `orderwire.broker.coordination` as a server does; a contract test asks
both the same.  A change is told to who watches once, however often it happens before the next
watch, and not of what it was: so hints are coalesced.  [S004:G14]
"""

from collections import defaultdict
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from orderwire.broker.coordination.commands import (
    ANY_VERSION,
    Check,
    Children,
    Command,
    Create,
    Delete,
    Exists,
    Failure,
    Get,
    Made,
    Multi,
    MultiFailure,
    Operation,
    Set,
    Znode,
)

_NUMBER_DIGITS = 10

Answer: TypeAlias = Made | Failure | MultiFailure | Znode | bool | tuple[Made, ...]


class Hint(msgspec.Struct, frozen=True, order=True):
    """What a session watched has changed; how is for it to read."""

    path: str
    children: bool
    """The names below it; otherwise whether it is there and what it holds."""


class _Node(msgspec.Struct):
    data: bytes
    owner: int
    created_zxid: int
    version: int = 0
    made: int = 0
    """Children ever made: what numbers the next."""
    children: dict[str, None] = msgspec.field(default_factory=dict)


class ZookeeperTree:
    """The znodes, the sessions, and what each session has yet to be told."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {"/": _Node(b"", 0, 0)}
        self._sessions = 0
        self._zxid = 0
        self._hints: dict[int, list[Hint]] = {}
        """Of every session that lives, in the order of the changes."""
        self._watches: defaultdict[Hint, dict[int, None]] = defaultdict(dict)

    def begin_session(self) -> int:
        """Return the number of a new session."""
        self._sessions += 1
        self._hints[self._sessions] = []
        return self._sessions

    def lives(self, session: int) -> bool:
        """Whether the session has not ended."""
        return session in self._hints

    def end_session(self, session: int) -> None:
        """End a session, closed or expired: its ephemeral znodes go at one moment."""
        if self._hints.pop(session, None) is None:
            return
        for watching in self._watches.values():
            watching.pop(session, None)
        self._zxid += 1
        changed: list[Hint] = []
        for path in sorted(self._nodes):
            if self._nodes[path].owner == session:
                self._drop(path, changed, [])
        self._tell(changed)

    def hints(self, session: int) -> list[Hint]:
        """Take what a session has not been told yet."""
        told, self._hints[session] = self._hints[session], []
        return told

    def ask(self, session: int, command: Command) -> Answer:
        """Carry out a command of a session that lives."""
        assert session in self._hints, f"session {session} has ended"
        match command:
            case Get(path, watch):
                return self._get(session, path, watch)
            case Exists(path, watch):
                if watch:
                    self._watches[Hint(path, False)][session] = None
                return path in self._nodes
            case Children(path, watch):
                node = self._nodes.get(path)
                if node is None:
                    return Failure.NO_ZNODE
                if watch:
                    self._watches[Hint(path, True)][session] = None
                return tuple(sorted(node.children))
            case Multi(operations):
                return self._all_or_none(session, operations)
        done = self._all_or_none(session, (command,))
        return done.failure if isinstance(done, MultiFailure) else done[0]

    def _get(self, session: int, path: str, watch: bool) -> Znode | Failure:
        node = self._nodes.get(path)
        if node is None:
            return Failure.NO_ZNODE
        if watch:
            self._watches[Hint(path, False)][session] = None
        return Znode(node.data, node.version, node.created_zxid, 0, node.owner)

    # -- changes ----------------------------------------------------------------------------

    def _all_or_none(
        self, session: int, operations: tuple[Operation, ...]
    ) -> MultiFailure | tuple[Made, ...]:
        self._zxid += 1
        undo: list[Callable[[], object]] = []
        changed: list[Hint] = []
        made: list[Made] = []
        for index, operation in enumerate(operations):
            done = self._do(session, operation, changed, undo)
            if isinstance(done, Failure):
                for step in reversed(undo):
                    step()
                return MultiFailure(index, done)
            made.append(done)
        self._tell(changed)
        return tuple(made)

    def _do(
        self,
        session: int,
        operation: Operation,
        changed: list[Hint],
        undo: list[Callable[[], object]],
    ) -> Made | Failure:
        if isinstance(operation, Create):
            return self._create(session, operation, changed, undo)
        node = self._nodes.get(operation.path)
        if node is None:
            return Failure.NO_ZNODE
        if operation.version not in (ANY_VERSION, node.version):
            return Failure.BAD_VERSION
        match operation:
            case Set(path, data):
                before = (node.data, node.version)
                undo.append(lambda: self._put_back(node, *before))
                node.data, node.version = data, node.version + 1
                changed.append(Hint(path, False))
                return node.version
            case Delete(path):
                if node.children:
                    return Failure.NOT_EMPTY
                self._drop(path, changed, undo)
            case Check():
                pass
        return None

    def _create(
        self,
        session: int,
        wish: Create,
        changed: list[Hint],
        undo: list[Callable[[], object]],
    ) -> str | Failure:
        above, _, name = wish.path.rpartition("/")
        parent = self._nodes.get(above or "/")
        if parent is None:
            return Failure.NO_ZNODE
        if wish.sequence:
            name += f"{parent.made:0{_NUMBER_DIGITS}}"
        path = f"{above}/{name}"
        if path in self._nodes:
            return Failure.ZNODE_EXISTS
        if parent.owner:
            return Failure.NO_CHILDREN
        owner = session if wish.ephemeral else 0
        self._nodes[path] = _Node(wish.data, owner, self._zxid)
        parent.children[name] = None
        parent.made += 1

        def forget() -> None:
            del self._nodes[path]
            del parent.children[name]
            parent.made -= 1

        undo.append(forget)
        changed += [Hint(path, False), Hint(above or "/", True)]
        return path

    def _drop(self, path: str, changed: list[Hint], undo: list[Callable[[], object]]) -> None:
        above, _, name = path.rpartition("/")
        parent = self._nodes[above or "/"]
        node = self._nodes.pop(path)
        del parent.children[name]

        def restore() -> None:
            self._nodes[path] = node
            parent.children[name] = None

        undo.append(restore)
        changed += [Hint(path, False), Hint(path, True), Hint(above or "/", True)]

    @staticmethod
    def _put_back(node: _Node, data: bytes, version: int) -> None:
        node.data, node.version = data, version

    def _tell(self, changed: list[Hint]) -> None:
        for hint in changed:
            for session in self._watches.pop(hint, {}):
                self._hints[session].append(hint)
