"""The topics of a cluster: followed, and made, changed and deleted by compare-and-set."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

from orderwire.aio.zookeeper_errors import MultiRefused, NoZnode, ZookeeperUnavailable
from orderwire.aio.zookeeper_folder import READ_AT_ONCE, ZnodeFolder
from orderwire.aio.zookeeper_scope import SessionScope
from orderwire.broker.coordination.commands import Create, Delete, Failure, Operation, Set
from orderwire.broker.coordination.layout import (
    TOPICS,
    Malformed,
    decode_topic,
    topic_path,
)
from orderwire.broker.coordination.partition import change_topic, create_topic
from orderwire.broker.topics import Topic
from orderwire.kernel import NS_PER_S, LocalProtocolError, OrderwireError

TRANSACTION_BYTES_MAX = 900_000
"""ZooKeeper's own limit is 1 MiB unless it is set higher."""
_OPERATION_BYTES = 100
"""What an operation takes beside its path and data, with the permissions of a user."""
_DELETIONS_MAX = 16
"""Attempts to delete a topic while others make znodes below it."""


class TopicRefused(OrderwireError):
    """A topic cannot be made, changed or deleted; `failure` says why."""

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure = failure


class FollowedTopics:
    """`told(topic)` of one that is new or has changed, `gone(topic)` of one that is no more.

    A topic that was deleted and made again under its name is told as gone, then as new.
    """

    def __init__(
        self,
        scope: SessionScope,
        told: Callable[[Topic], None],
        gone: Callable[[Topic], None],
        *,
        change_ns: int,
    ) -> None:
        """`change_ns` is how long a change may take, while ZooKeeper may be away for a moment."""
        self.folder = ZnodeFolder(scope, TOPICS, self._changed)
        self._scope = scope
        self._told = told
        self._gone = gone
        self._change_ns = change_ns
        self._topics: dict[str, Topic] = {}

    def __iter__(self) -> Iterator[Topic]:
        return iter([self._topics[name] for name in sorted(self._topics)])

    def get(self, name: str) -> Topic | None:
        """Return the topic of this name, as it was told."""
        return self._topics.get(name)

    def _changed(self, names: set[str]) -> None:
        for name in sorted(names):
            znode, known = self.folder.znodes.get(name), self._topics.get(name)
            topic = None
            if znode is not None:
                try:
                    topic = decode_topic(name, znode.data)
                    self._check(topic)
                except Malformed as error:  # What was known before holds on.
                    self._scope.found_malformed(error)
                    continue
            if known is not None and (topic is None or topic.topic_id != known.topic_id):
                del self._topics[name]
                self._gone(known)
            if topic is not None and topic != known:
                self._topics[name] = topic
                self._told(topic)

    @property
    def is_complete(self) -> bool:
        """Whether every topic that ZooKeeper has was read; some may be malformed."""
        return set(self.folder.znodes) <= set(self._topics)

    def _check(self, topic: Topic) -> None:
        known = self._topics.get(topic.name)
        if known is None or known.topic_id != topic.topic_id:
            return
        if topic.partitions < known.partitions:
            raise Malformed(
                f"{topic_path(topic.name)}: {topic.partitions} partitions after"
                f" {known.partitions}; they never become fewer"
            )

    async def learn(self, names: Sequence[str] = ()) -> None:
        """Hear of every topic that was made before this call, and how these are now.

        Raises ZookeeperUnavailable, ZookeeperRefused.
        """
        await self._scope.client.sync(TOPICS)
        await self.folder.read_names(*names)

    # -- changes ----------------------------------------------------------------------------

    async def create(self, topic: Topic) -> None:
        """Make a topic with its znodes; it has been told when this returns.

        Raises TopicRefused, LocalProtocolError when it is too large, ZookeeperUnavailable (then it
        may have been made) and ZookeeperRefused.
        """
        if len(topic.replicas) != topic.partitions or not all(topic.replicas):
            raise LocalProtocolError(f"topic {topic.name!r}: every partition needs replicas")
        operations = create_topic(topic)
        _check_size(topic.name, operations)

        async def attempt() -> None:
            try:
                await self._scope.client.multi(*operations)
            except MultiRefused as refused:
                if not await self._is(topic):
                    message = f"topic {topic.name!r}: {refused}"
                    raise TopicRefused(refused.failure, message) from None

        await self._patiently(attempt)
        await self._read_back(topic)

    async def change(self, topic: Topic) -> None:
        """Put this in place of the topic of the same id, as it was told last.

        Raises as `create`; TopicRefused with BAD_VERSION when another changed it meanwhile.
        """
        known, znode = self._topics.get(topic.name), self.folder.znodes.get(topic.name)
        if known is None or znode is None or known.topic_id != topic.topic_id:
            raise TopicRefused(Failure.NO_ZNODE, f"there is no topic {topic.name!r} of this id")
        kept = all(
            set(before) <= set(now)
            for before, now in zip(known.replicas, topic.replicas, strict=False)
        )
        if not (kept and len(topic.replicas) == topic.partitions >= known.partitions):
            raise LocalProtocolError(
                f"topic {topic.name!r}: partitions and replicas are only added"
            )
        operations = change_topic(topic, known.partitions, znode.version)
        _check_size(topic.name, operations)

        async def attempt() -> None:
            try:
                await self._scope.client.multi(*operations)
            except MultiRefused as refused:
                if not await self._is(topic):
                    message = f"topic {topic.name!r} has changed meanwhile: {refused}"
                    raise TopicRefused(refused.failure, message) from None

        await self._patiently(attempt)
        await self._read_back(topic)

    async def delete(self, topic: Topic) -> None:
        """Delete the topic of this id with all its znodes.  Raises as `create`."""
        await self._patiently(lambda: self._delete(topic))
        await self._read_back(topic)

    async def _read_back(self, topic: Topic) -> None:
        """Be told of what we did before it is answered."""
        with contextlib.suppress(ZookeeperUnavailable):  # Done it is; the watch tells the rest.
            await self.folder.read(topic.name)

    async def _is(self, topic: Topic) -> bool:
        """Whether exactly this is there: an attempt whose answer was lost has been carried out."""
        path = topic_path(topic.name)
        try:
            return decode_topic(topic.name, (await self._scope.client.get(path)).data) == topic
        except (NoZnode, Malformed):
            return False

    async def _patiently(self, attempt: Callable[[], Awaitable[None]]) -> None:
        """Repeat what got no answer; the attempts find out what the earlier ones did."""
        end_ns = time.monotonic_ns() + self._change_ns
        while True:
            try:
                await attempt()
                return
            except ZookeeperUnavailable:
                if time.monotonic_ns() >= end_ns:
                    raise
            await asyncio.sleep(self._scope.limits.retry_min_ns / NS_PER_S)

    async def _delete(self, topic: Topic) -> None:
        client, path = self._scope.client, topic_path(topic.name)
        for _ in range(_DELETIONS_MAX):
            try:
                znode = await client.get(path)
            except NoZnode:
                return
            try:
                if decode_topic(topic.name, znode.data).topic_id != topic.topic_id:
                    return
            except Malformed as error:
                self._scope.found_malformed(error)
            try:
                await client.multi(*await self._deletions(path, znode.version))
                return
            except (MultiRefused, NoZnode):  # Somebody made or deleted a znode in it.
                continue
        raise ZookeeperUnavailable(f"{path} changes again and again while it is deleted")

    async def _deletions(self, path: str, version: int) -> list[Operation]:
        """Return what deletes the topic, all at one moment, children first."""
        client = self._scope.client
        indexes = await client.children(path)
        below: list[Operation] = []
        for start in range(0, len(indexes), READ_AT_ONCE):
            some = indexes[start : start + READ_AT_ONCE]
            names = await asyncio.gather(*(client.children(f"{path}/{index}") for index in some))
            locks = await asyncio.gather(*(self._locks(f"{path}/{index}/lock") for index in some))
            for index, children, holders in zip(some, names, locks, strict=True):
                below += [Delete(f"{path}/{index}/lock/{holder}") for holder in holders]
                below += [Delete(f"{path}/{index}/{child}") for child in children]
                below.append(Delete(f"{path}/{index}"))
        return [*below, Delete(path, version)]

    async def _locks(self, path: str) -> list[str]:
        try:
            return await self._scope.client.children(path)
        except NoZnode:
            return []


def _check_size(name: str, operations: tuple[Operation, ...]) -> None:
    size = sum(
        len(each.path)
        + _OPERATION_BYTES
        + (len(each.data) if isinstance(each, Create | Set) else 0)
        for each in operations
    )
    if size > TRANSACTION_BYTES_MAX:
        raise LocalProtocolError(
            f"topic {name!r}: {size} bytes for ZooKeeper at once; expected at most"
            f" {TRANSACTION_BYTES_MAX}: make it with fewer partitions, and add the others in steps"
        )
