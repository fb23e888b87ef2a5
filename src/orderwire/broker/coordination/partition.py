"""A partition's epoch, original and in-sync set: read at one moment, and changed at one moment.

The in-sync set is written by an original alone, in a transaction that finds its epoch unchanged and
its `original` there; an epoch is begun by who makes `original`, in one transaction.  So what was
read in turn, the epoch first, was true at one moment unless `original` or the in-sync set says a
later epoch.
"""

import msgspec

from orderwire.broker.coordination.commands import Check, Create, Delete, Operation, Set, Znode
from orderwire.broker.coordination.layout import (
    NO_SYNC,
    IsrData,
    LostData,
    OriginalData,
    PartitionPaths,
    SyncMark,
    decode,
    decode_isr,
    decode_number,
    encode,
    encode_topic,
    topic_path,
)
from orderwire.broker.replication.effects import ChangeIsr, Lose, Replace, SetSync
from orderwire.broker.replication.view import BrokerId, Loss, PartitionView, with_loss
from orderwire.broker.topics import Topic


class Seen(msgspec.Struct, frozen=True):
    """What a partition's znodes said at one moment, with what a compare-and-set needs."""

    epoch: int
    epoch_version: int
    original: OriginalData | None
    owner: int
    """The session of the original; 0 when there is none."""
    isr: tuple[BrokerId, ...]
    isr_version: int
    sync_start: int = 0
    """S + 1 as last written."""
    losses: tuple[Loss, ...] = ()
    lost_version: int = -1
    """Of the znode that holds them; −1: there is none."""
    unclean: bool = False
    """Whether the in-sync set was put in the place of one that is gone."""

    def view(self, replicas: tuple[int, ...]) -> PartitionView:
        """Return it as the replicas are told."""
        original = None if self.original is None else self.original.id
        ascending = tuple(BrokerId(replica) for replica in sorted(replicas))
        preferred = BrokerId(replicas[0])
        return PartitionView(
            self.epoch,
            original,
            self.isr,
            self.isr_version,
            ascending,
            preferred,
            self.sync_start,
            self.losses,
            self.unclean,
        )


def seen(
    paths: PartitionPaths,
    epoch: Znode,
    original: Znode | None,
    isr: Znode,
    sync_start: Znode | None = None,
    lost: Znode | None = None,
) -> Seen | None:
    """Put together what was read in this order; None: they changed meanwhile, read again.

    Raises Malformed.
    """
    number = decode_number(paths.epoch, epoch.data)
    members = decode_isr(paths.isr, isr.data)
    who, owner = None, 0
    if original is not None:
        who, owner = decode(OriginalData, paths.original, original.data), original.owner
    if members.epoch > number or (who is not None and who.epoch != number):
        return None
    start = 0
    if sync_start is not None:
        start = max(SyncMark.decode(paths.sync_start, sync_start.data).offset, 0)
    losses: tuple[Loss, ...] = ()
    if lost is not None:
        losses = decode(LostData, paths.lost, lost.data).losses
    version = -1 if lost is None else lost.version
    return Seen(
        number,
        epoch.version,
        who,
        owner,
        members.isr,
        isr.version,
        start,
        losses,
        version,
        members.unclean,
    )


def elect(
    paths: PartitionPaths, now: Seen, me: BrokerId, incarnation: str, epoch: int
) -> tuple[OriginalData, tuple[Operation, ...]] | None:
    """Become original with `epoch` + 1; None when it is known that it cannot be.  [R7]"""
    if now.epoch != epoch or now.original is not None or me not in now.isr:
        return None
    original = OriginalData(me, incarnation, epoch + 1)
    return original, (
        Check(paths.isr, now.isr_version),
        Set(paths.epoch, b"%d" % original.epoch, now.epoch_version),
        Create(paths.original, encode(original), ephemeral=True),
    )


def elected(now: Seen, original: OriginalData, owner: int) -> Seen:
    """What the znodes say after an election that was won."""
    return msgspec.structs.replace(
        now,
        epoch=original.epoch,
        epoch_version=now.epoch_version + 1,
        original=original,
        owner=owner,
    )


def resign(
    paths: PartitionPaths, now: Seen, me: BrokerId, epoch: int
) -> tuple[Operation, ...] | None:
    """Give the epoch up; None when it is not ours."""
    if now.epoch != epoch or now.original is None or now.original.id != me:
        return None
    return Check(paths.epoch, now.epoch_version), Delete(paths.original)


def depose(
    paths: PartitionPaths, now: Seen, broker: BrokerId, incarnation: str
) -> tuple[Operation, ...] | None:
    """Take the partition from a process that has ended, before its session does; None: it is not
    that one's.  Should it live after all, it is as if its session had expired: others are elected
    in a higher epoch, and it is told that its znode has gone.  [R7]
    """
    original = now.original
    if original is None or (original.id, original.incarnation) != (broker, incarnation):
        return None
    return Check(paths.epoch, now.epoch_version), Delete(paths.original)


def change_isr(
    paths: PartitionPaths, now: Seen, me: BrokerId, wish: ChangeIsr
) -> tuple[Operation, ...] | None:
    """Replace the in-sync set as original of an epoch; None when it is known that it cannot be."""
    if now.epoch != wish.epoch or now.original is None or now.original.id != me:
        return None
    assert me in wish.isr, f"broker {me} is original and leaves itself out of {wish.isr}"
    data = IsrData(wish.epoch, tuple(sorted(wish.isr)), now.unclean)
    return (
        Check(paths.epoch, now.epoch_version),
        Check(paths.original),
        Set(paths.isr, encode(data), wish.version),
    )


def replace(paths: PartitionPaths, now: Seen, wish: Replace) -> tuple[Operation, ...] | None:
    """Put one replica in the place of an in-sync set that is gone; None when it is known that it
    cannot be.  Whoever is elected meanwhile changes the epoch.  [S004:4.8]"""
    if (now.epoch, now.isr_version) != (wish.epoch, wish.version) or now.original is not None:
        return None
    data = IsrData(wish.epoch, (wish.member,), True)
    return (
        Check(paths.epoch, now.epoch_version),
        Set(paths.isr, encode(data), wish.version),
    )


def set_sync(
    paths: PartitionPaths, now: Seen, me: BrokerId, wish: SetSync, least: int
) -> tuple[Operation, ...] | None:
    """Write `syncStart` and `syncEnd` as original of an epoch; None when that is over.

    What lies below `least`, the `syncStart` that is there, is left out: an original that few have
    followed yet may know an older S.  [I6]
    """
    if now.epoch != wish.epoch or now.original is None or now.original.id != me:
        return None
    operations: list[Operation] = [
        Check(paths.epoch, now.epoch_version),
        Check(paths.original),
    ]
    for path, offset in ((paths.sync_start, wish.start), (paths.sync_end, wish.end)):
        if offset is not None and offset >= least:
            operations.append(Set(path, SyncMark(offset, wish.epoch, wish.round).encode()))
    return tuple(operations)


def lose(
    paths: PartitionPaths, now: Seen, me: BrokerId, wish: Lose
) -> tuple[Operation, ...] | None:
    """Write down that S goes back, as original of an epoch; None when that is over.  Nothing else
    takes `syncStart` back.  [S004:4.8]"""
    if now.epoch != wish.epoch or now.original is None or now.original.id != me:
        return None
    losses = with_loss(now.losses, Loss(wish.epoch, wish.start, wish.end, wish.unclean))
    data = encode(LostData(losses))
    written = now.lost_version >= 0
    mark = SyncMark(wish.start, wish.epoch, 0).encode()
    return (
        Check(paths.epoch, now.epoch_version),
        Check(paths.original),
        Set(paths.lost, data, now.lost_version) if written else Create(paths.lost, data),
        Set(paths.sync_start, mark),
        Set(paths.sync_end, mark),
        # The same again, so that everybody looks; what an unclean election lost is told now.
        Set(paths.isr, encode(IsrData(wish.epoch, now.isr)), now.isr_version),
    )


def create_topic(topic: Topic) -> tuple[Operation, ...]:
    """Make a topic with its partitions: every replica is in sync, nobody elected."""
    return Create(topic_path(topic.name), encode_topic(topic)), *_create_partitions(topic, 0)


def change_topic(topic: Topic, partitions: int, version: int) -> tuple[Operation, ...]:
    """Put this in place of a topic with so many partitions, if it has this version."""
    changed = Set(topic_path(topic.name), encode_topic(topic), version)
    return changed, *_create_partitions(topic, partitions)


def _create_partitions(topic: Topic, first: int) -> list[Operation]:
    made: list[Operation] = []
    for index in range(first, topic.partitions):
        paths = PartitionPaths(topic.name, index)
        isr = IsrData(-1, tuple(BrokerId(broker) for broker in sorted(topic.replicas[index])))
        made += [
            Create(paths.me),
            Create(paths.epoch, b"-1"),
            Create(paths.isr, encode(isr)),
            Create(paths.sync_start, NO_SYNC.encode()),
            Create(paths.sync_end, NO_SYNC.encode()),
            Create(paths.lock),
        ]
    return made
