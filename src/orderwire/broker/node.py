"""One broker, without I/O: it decodes requests, acts on logs and groups, and encodes replies.

The runtime feeds it frames and the time, sends what it returns, asks for `parked.ready` replies
after every call, runs `Commit`s in a worker thread, and wakes it at `next_deadline`.
"""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from struct import Struct

from orderwire.broker.cluster import Cluster
from orderwire.broker.coordinators import Alone, Coordinator, Shards
from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.flush import Flush
from orderwire.broker.group_model import Answer, GroupEffects, JoinResult
from orderwire.broker.groups import GroupCoordinator
from orderwire.broker.journal import Journal, frame
from orderwire.broker.log import (
    LogConfig,
    LogDamaged,
    MemoryStorage,
    PartitionLog,
    Refused,
    Storage,
    StorageError,
    SyncJob,
)
from orderwire.broker.parked import ParkedRequests
from orderwire.broker.partitions import Partition
from orderwire.broker.producer_ids import ProducerIds
from orderwire.broker.replicas import DoAside, OpenReplica, Replicas
from orderwire.broker.replication.replica import SyncWork
from orderwire.broker.replies import Client, Outcome, Reply, Request, reply
from orderwire.broker.requests import HANDLERS, unsupported_version
from orderwire.broker.requests.groups import group_response, join_response, sync_response
from orderwire.broker.requests.holding import holds
from orderwire.broker.requests.produce import body_at, produce_single
from orderwire.broker.scrub import Scrub
from orderwire.broker.security.guard import UNAUTHENTICATED_BYTES_MAX, Guard
from orderwire.broker.settings import BrokerSettings
from orderwire.broker.topics import Topic, TopicStore
from orderwire.broker.wire.apis import API_BY_KEY, ApiKey
from orderwire.broker.wire.codec import skip_tags
from orderwire.broker.wire.produce_run import ProduceShape, produce_shape
from orderwire.kernel import NS_PER_MS, Instant
from orderwire.kernel.errors import RemoteProtocolError

_HEAD = Struct(">hhih")
"""API key, version, correlation id, length of the client id (-1: none)."""
_PRODUCE = int(ApiKey.PRODUCE)
_BEFORE_LOGIN = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
_PLAIN_REQUEST_BYTES_MAX = 4 << 20
"""Longest request without record batches: decoded, it takes up to 50 times that in objects."""

OpenLog = Callable[[Topic, int, LogConfig], PartitionLog]
"""Opens (or makes) the log of one partition of a topic."""
RemoveLogs = Callable[[Topic], None]
"""Deletes the closed logs of a deleted topic."""


class Commit:
    """What one group commit has to put on disk: first the data, then what refers to it."""

    def __init__(
        self,
        logs: list[tuple[Partition, int, SyncJob | SyncWork | None]],
        journal: Journal,
        framed: bytes,
        snapshot: list[bytes] | None,
    ) -> None:
        self.logs = logs
        self._journal = journal
        self._framed = framed
        self._snapshot = snapshot

    def run(self) -> None:
        """Write and sync; called in the worker thread.  A StorageError must end the broker."""
        for partition, _, job in self.logs:
            if job is not None:
                try:
                    job.run()
                except StorageError:
                    if not partition.log.is_closed:  # its topic was deleted meanwhile
                        raise
        if self._framed:
            self._journal.append(self._framed)
            self._journal.sync()
        if self._snapshot is not None:
            self._journal.replace(self._snapshot)


class Broker:
    """The broker's memory and its rules."""

    def __init__(
        self,
        settings: BrokerSettings,
        files: Storage,
        open_log: OpenLog,
        remove_logs: RemoveLogs,
        chance: Random,
        now: Instant,
        *,
        cluster: Cluster | None = None,
        open_replica: OpenReplica | None = None,
        guard: Guard | None = None,
        aside: DoAside | None = None,
    ) -> None:
        """With a `cluster`, topics are the cluster's, and every partition has replicas; `aside`
        opens them in another thread."""
        self.settings = settings
        self.guard = guard
        """Who may do what; None: everybody everything."""
        self._cluster_id, self.producer_ids = ProducerIds.open(files, chance)
        self.shards: Shards | None = None
        """The coordinators of groups here, in a cluster."""
        self._alone = Alone(self)
        self.replicas: Replicas | None = None
        """What keeps partitions the same elsewhere; None at a broker that is alone."""
        if cluster is not None:
            assert open_replica is not None
            self.replicas = Replicas(self, cluster, open_replica)
            self.shards = Shards(self, settings.groups, chance, group_response)
            files_of_topics: Storage = MemoryStorage()  # ZooKeeper has them
        else:
            files_of_topics = files
        self.topics = TopicStore(files_of_topics, settings.topics, chance)
        self.groups = GroupCoordinator(settings.groups, chance)
        self.aside: DoAside = aside or (lambda job, then, now: then(job(), now))
        self._open_log = open_log
        self._remove_logs = remove_logs
        self._partitions: dict[str, list[Partition | None]] = {}
        """None stands for a partition that has no replica here."""
        self._journal = Journal(files)
        self._journal_pending: list[bytes] = []
        self._dirty: dict[Partition, None] = {}
        self._damages: list[tuple[Partition, str]] = []
        self._told_damage: set[Partition] = set()
        self.parked = ParkedRequests(self)
        self._next_retention = Instant(now + settings.retention_check_ns)
        self._next_checkpoint = Instant(now + settings.checkpoint_ns)
        self.scrub = Scrub(self, now)
        """Looks for bits that have flipped."""
        for topic in self.topics:
            self.open_partitions(topic, now)
        self._recover_groups(now)

    @property
    def cluster_id(self) -> str:
        """Of the cluster, or of this broker when it is alone."""
        return self._cluster_id if self.replicas is None else self.replicas.cluster.cluster_id

    def _recover_groups(self, now: Instant) -> None:
        for record in self._journal.recover():
            self.groups.replay(record, now)
        ends = {
            (partition.topic, partition.index): partition.log.end_offset
            for partition in self.all_partitions()
        }
        self.apply(self.groups.clamp_offsets(ends))
        self.groups.start(now)

    # -- requests ---------------------------------------------------------------------------

    def serve(self, data: memoryview, client: Client, token: int, now: Instant) -> Reply | Outcome:
        """Act on one request frame, its length field left out.

        Raises RemoteProtocolError when it is malformed or unknown: close its connection.
        """
        if len(data) < _HEAD.size:
            raise RemoteProtocolError(f"a request of {len(data)} bytes has no header")
        key, version, correlation_id, length = _HEAD.unpack_from(data)
        if client.login is not None and client.is_stranger:
            _check_stranger(key, len(data))
        if key == _PRODUCE:
            done = produce_single(self, data, version, correlation_id, length, client, token, now)
            if done is not None:
                return done
        elif len(data) > _PLAIN_REQUEST_BYTES_MAX:
            raise RemoteProtocolError(
                f"a request of {len(data)} bytes that is no Produce;"
                f" at most {_PLAIN_REQUEST_BYTES_MAX} are taken"
            )
        api = API_BY_KEY.get(key)
        if api is None:
            raise RemoteProtocolError(f"API key {key} is not served")
        if not api.oldest <= version <= api.newest:
            return unsupported_version(api, version, correlation_id)
        at = _HEAD.size
        client_id = ""
        if length > 0:
            try:
                client_id = str(data[at : at + length], "utf-8")
            except UnicodeDecodeError:
                raise RemoteProtocolError("the client id is no UTF-8 text") from None
            at += length
        if api.request_header_version(version) == 2:
            try:
                at = skip_tags(data, at)
            except IndexError:
                raise RemoteProtocolError("the request header ends in its tags") from None
        body, _ = api.decode_request(data, at, version)
        request = Request(token, api, version, correlation_id, client_id, client, body)
        if self.replicas is not None and holds(self, self.replicas, request, data, at, now):
            return Outcome.PARKED
        return HANDLERS[key](self, request, now)

    def shape(self, data: memoryview) -> ProduceShape | None:
        """What requests like this one share, for `produce_run`; None when each is served alone."""
        if len(data) < _HEAD.size or self.settings.flush is Flush.MESSAGE:
            return None
        key, version, _, length = _HEAD.unpack_from(data)
        at = body_at(data, version, length) if key == _PRODUCE else None
        return None if at is None else produce_shape(data, at, version)

    def next_deadline(self) -> Instant:
        """When `wake` is next due."""
        due = min(self._next_retention, self._next_checkpoint)
        of_scrub = self.scrub.next_deadline()
        if of_scrub is not None:
            due = min(due, of_scrub)
        of_parked = self.parked.next_deadline()
        if of_parked is not None:
            due = min(due, of_parked)
        of_replicas = None if self.replicas is None else self.replicas.next_deadline()
        if of_replicas is not None:
            due = min(due, of_replicas)
        of_groups = (self.shards or self.groups).next_deadline()
        return due if of_groups is None else min(due, of_groups)

    def wake(self, now: Instant) -> None:
        """Act on every deadline at or before `now`."""
        if self.replicas is not None:
            self.replicas.wake(now)
        self.parked.wake(now)
        self.scrub.wake(now)
        if self.shards is not None:
            self.shards.wake(now)
        else:
            self.apply(self.groups.wake(now))
        if self._next_retention <= now:
            self._next_retention = Instant(now + self.settings.retention_check_ns)
            for partition in self.all_partitions():
                self._maintain(partition, now)
        if self._next_checkpoint <= now:
            self._next_checkpoint = Instant(now + self.settings.checkpoint_ns)
            for partition in self.all_partitions():
                if partition.log.synced_offset < partition.log.end_offset:
                    self._dirty[partition] = None

    # -- for the handlers -------------------------------------------------------------------

    def coordinator(self, group_id: str) -> Coordinator | ErrorCode:
        """Return what keeps a group, or why it is not here."""
        return self._alone if self.shards is None else self.shards.of(group_id)

    def coordinators(self) -> Sequence[Coordinator]:
        """Everything here that keeps groups."""
        return (self._alone,) if self.shards is None else tuple(self.shards)

    def groups_recovered(self, partition: Partition, now: Instant) -> None:
        """We may write to a partition of the internal topic."""
        if self.shards is not None:
            self.shards.recovered(partition, now)

    def groups_advanced(self, partition: Partition, now: Instant) -> None:
        """More of a partition of the internal topic is committed."""
        if self.shards is not None:
            self.shards.advanced(partition, now)

    def groups_deposed(self, partition: Partition) -> None:
        """We are no original of a partition of the internal topic any more."""
        if self.shards is not None:
            self.shards.deposed(partition)

    def apply(self, effects: GroupEffects) -> None:
        """Write and answer what the coordinator says, in its order."""
        if not effects:
            return
        durable = False
        for effect in effects:
            if isinstance(effect, Answer):
                self._answer(effect, durable=durable)
            else:
                durable = True
                self._journal_pending.append(frame(effect.record))
        if self.settings.flush is Flush.NONE:
            self._write_journal()

    def _answer(self, answer: Answer, *, durable: bool) -> None:
        request = self.parked.expected(answer.token)
        if request is None:  # its connection is gone
            return
        if isinstance(answer.result, JoinResult):
            done = reply(request, join_response(request, answer.result), durable=durable)
        else:
            done = reply(request, sync_response(answer.result), durable=durable)
        self.parked.answer(answer.token, done)

    def _write_journal(self) -> None:
        self._journal.append(b"".join(self._journal_pending))
        self._journal_pending.clear()
        if self._journal.is_long:
            self._journal.replace([frame(record) for record in self.groups.records()])

    # -- partitions -------------------------------------------------------------------------

    def partition(self, topic: str, index: int) -> Partition | None:
        """Return one partition; None when there is no such topic or index, or it is not here."""
        partitions = self._partitions.get(topic)
        if partitions is None or not 0 <= index < len(partitions):
            return None
        return partitions[index]

    def missing(self, topic: str, index: int) -> ErrorCode:
        """Say why `partition` has returned None."""
        partitions = self._partitions.get(topic)
        if partitions is not None and 0 <= index < len(partitions):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def exists(self, topic: str, index: int) -> bool:
        """Whether there is such a partition, here or elsewhere."""
        return 0 <= index < len(self._partitions.get(topic, ()))

    def has(self, partition: Partition) -> bool:
        """Whether this partition has not been deleted."""
        return self.partition(partition.topic, partition.index) is partition

    def all_partitions(self) -> Iterator[Partition]:
        """Yield every partition of every topic that is here."""
        for partitions in self._partitions.values():
            for partition in partitions:
                if partition is not None:
                    yield partition

    def open_partitions(self, topic: Topic, now: Instant) -> None:
        """Open the logs of a topic that are not open yet."""
        partitions = self._partitions.setdefault(topic.name, [])
        if self.replicas is not None:
            for index, known in enumerate(list(partitions)):
                if known is None:  # it may have come here since
                    self.replicas.open(topic, index, now)
        for index in range(len(partitions), topic.partitions):
            if self.replicas is None:
                log = self._open_log(topic, index, self.log_config(topic))
                partitions.append(Partition(topic, index, log))
                continue
            partitions.append(None)
            self.replicas.open(topic, index, now)

    def add(self, partition: Partition) -> None:
        """A replica is open now."""
        self._partitions[partition.topic][partition.index] = partition

    def topic_changed(self, topic: Topic, now: Instant) -> None:
        """Take from the cluster that a topic is new, or has grown, or is configured otherwise."""
        before = self.topics.get(topic.name)
        if before is not None and before.topic_id != topic.topic_id:
            self.topic_gone(before.topic_id, now)
            before = None
        self.topics.take(topic)
        self.open_partitions(topic, now)
        if before is not None:
            self.reconfigure(topic, now)
        if self.replicas is not None:
            self.replicas.topic_changed(before, topic, now)

    def topic_gone(self, topic_id: bytes, now: Instant) -> None:
        """Take from the cluster that a topic was deleted."""
        topic = self.topics.by_id(topic_id)
        if self.replicas is not None:
            self.replicas.gone(topic_id)
        if topic is not None:
            self.topics.delete(topic)
            self.close_partitions(topic, now)

    def close_partitions(self, topic: Topic, now: Instant) -> None:
        """Close and delete the logs of a deleted topic; fetches that wait for it are answered."""
        for partition in self._partitions.pop(topic.name, []):
            if partition is not None:
                self.parked.look_again(partition.waiting)
                self._dirty.pop(partition, None)
                partition.close()
        self.remove_logs(topic)
        if self.shards is not None:
            self.shards.topic_gone(topic, now)
        else:
            self.apply(self.groups.forget_topics({topic.name}))

    def remove_logs(self, topic: Topic) -> None:
        """Delete a deleted topic's files, unless they are still being opened."""
        if self.replicas is None or not self.replicas.is_opening(topic.topic_id):
            self._remove_logs(topic)

    def let_go(self, partition: Partition) -> None:
        """Have a partition no more, until it is opened again; who waits for it is answered."""
        partition.given_up = True
        if self.has(partition):
            self._partitions[partition.topic][partition.index] = None
        self._dirty.pop(partition, None)
        self.parked.look_again(partition.waiting)
        self.groups_deposed(partition)

    def damaged(self, partition: Partition, damage: LogDamaged) -> ErrorCode:
        """A partition's files do not read as they were written: nothing of that is served.

        A replica begins anew and is mended by the others; a broker that is alone can only say so.
        Returns what a client is told.
        """
        if partition not in self._told_damage:
            self._told_damage.add(partition)
            self._damages.append((partition, str(damage)))
            if self.replicas is not None:
                self.replicas.lost.give_up(partition, damage)
        if self.replicas is None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NOT_LEADER_OR_FOLLOWER  # others have it

    def take_damages(self) -> list[tuple[Partition, str]]:
        """What was found damaged since the last call, for the log."""
        taken, self._damages = self._damages, []
        return taken

    def log_config(self, topic: Topic) -> LogConfig:
        """Return what the topic's configuration means to its logs."""
        return log_config(self.topics, topic)

    def delete_records(self, partition: Partition, before: int, now: Instant) -> int | Refused:
        """Forget records before this offset (−1: all that are committed); returns the new start.

        It is durable here, and the other replicas are being told.
        """
        replica = partition.replica
        if replica is not None:
            assert self.replicas is not None
            if not (replica.takes_produce and self.replicas.is_original(partition)):
                return Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker is not the original")
        start = partition.log.start_offset
        done = partition.log.delete_records(before, now // NS_PER_MS, partition.high_watermark)
        if partition.log.start_offset > start:
            self._start_moved(partition, now)
        return done

    def _start_moved(self, partition: Partition, now: Instant) -> None:
        if self.replicas is not None and partition.replica is not None:
            self.replicas.have(partition, lambda replica: replica.start_moved(now), now)

    def reconfigure(self, topic: Topic, now: Instant) -> None:
        """Tell a topic's logs and replicas that its configuration changed."""
        config = self.log_config(topic)
        for partition in self._partitions[topic.name]:
            if partition is not None:
                partition.log.config = config
                partition.of = topic
                if self.replicas is not None:
                    self.replicas.configure(partition, now)

    def appended(self, partition: Partition) -> None:
        """Note that a partition has grown: visible now, or when it is on disk."""
        if self.settings.flush is Flush.NONE:
            self.advance(partition, partition.log.end_offset)
        else:
            self._dirty[partition] = None

    def dirty(self, partition: Partition) -> None:
        """Note that something of a partition has to be put on disk."""
        self._dirty[partition] = None

    def _maintain(self, partition: Partition, now: Instant) -> None:
        """Apply retention; of replicas, the original's decides and the others follow."""
        upper = partition.high_watermark
        if self.replicas is not None and not self.replicas.is_original(partition):
            upper = partition.log.start_offset
        if partition.log.maintain(now // NS_PER_MS, upper):
            self._start_moved(partition, now)

    def advance(self, partition: Partition, end: int) -> None:
        """Let consumers read up to here."""
        if end > partition.high_watermark:
            partition.high_watermark = end
            if partition.waiting:
                self.parked.look_again(partition.waiting)

    # -- group commit -----------------------------------------------------------------------

    @property
    def has_unsynced(self) -> bool:
        """Whether `take_commit` would return something."""
        if self._dirty:
            return True
        return bool(self._journal_pending) and self.settings.flush is not Flush.NONE

    def take_commit(self, now: Instant) -> Commit | None:
        """Return what is to be put on disk now, or None; `committed` must follow it."""
        if not self.has_unsynced:
            return None
        logs: list[tuple[Partition, int, SyncJob | SyncWork | None]] = []
        for each in self._dirty:
            if each.replica is None:
                logs.append((each, each.log.end_offset, each.log.begin_sync()))
            else:
                assert self.replicas is not None
                self.replicas.lost.syncing(each)
                logs.append((each, 0, each.replica.begin_sync(now)))
        self._dirty = {}
        framed = b""
        snapshot = None
        if self.settings.flush is not Flush.NONE:
            framed = b"".join(self._journal_pending)
            self._journal_pending.clear()
            if self._journal.is_long:
                snapshot = [frame(record) for record in self.groups.records()]
        return Commit(logs, self._journal, framed, snapshot)

    def committed(self, commit: Commit, now: Instant) -> None:
        """Note that a commit is on disk: its data becomes visible to consumers."""
        for partition, end, job in commit.logs:
            if self.replicas is not None:
                self.replicas.lost.synced(partition, now)
            if not self.has(partition):
                continue  # deleted meanwhile, or given up
            if partition.replica is None:
                if job is not None:
                    assert isinstance(job, SyncJob)
                    partition.log.end_sync(job)
                self.advance(partition, end)
            elif job is not None:
                assert self.replicas is not None
                self._end_sync(self.replicas, partition, job, now)

    def _end_sync(
        self, replicas: Replicas, partition: Partition, job: SyncJob | SyncWork, now: Instant
    ) -> None:
        replicas.have(partition, lambda replica: replica.end_sync(job, now), now)

    def close(self, now: Instant) -> None:
        """Put everything on disk and close the logs."""
        commit = self.take_commit(now)
        if commit is not None:
            commit.run()
        for partition in self.all_partitions():
            partition.close()


def _check_stranger(key: int, size: int) -> None:
    """Raise RemoteProtocolError unless this is what a client may say before who it is."""
    if key not in _BEFORE_LOGIN:
        raise RemoteProtocolError(f"API key {key} before the client has said who it is")
    if size > UNAUTHENTICATED_BYTES_MAX:
        raise RemoteProtocolError(
            f"a request of {size} bytes before the client has said who it is;"
            f" at most {UNAUTHENTICATED_BYTES_MAX} are taken"
        )


def log_config(topics: TopicStore, topic: Topic) -> LogConfig:
    """Return what a topic's configuration means to its logs."""

    def number(name: str) -> int:
        return int(topics.config(topic, name))

    return LogConfig(
        segment_bytes=number("segment.bytes"),
        segment_ms=number("segment.ms"),
        retention_bytes=number("retention.bytes"),
        retention_ms=number("retention.ms"),
        max_message_bytes=number("max.message.bytes"),
    )
