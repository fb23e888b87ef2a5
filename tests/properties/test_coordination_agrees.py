"""Transactions over znodes, from readings that may be old or torn, do what the partition does.

The simulator's partition is the measure: nothing is done that it refuses, and no view is made up.
"""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderwire.broker.coordination.commands import Create, Failure, Get, Multi, MultiFailure, Znode
from orderwire.broker.coordination.layout import PartitionPaths, SyncMark
from orderwire.broker.coordination.partition import (
    Seen,
    change_isr,
    create_topic,
    elect,
    replace,
    resign,
    seen,
    set_sync,
)
from orderwire.broker.replication.effects import ChangeIsr, Elect, Replace, Resign, SetSync
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.broker.topics import Topic
from orderwire.sim.replication_zookeeper import PartitionZnodes
from orderwire.sim.zookeeper_tree import ZookeeperTree

BROKERS = (BrokerId(1), BrokerId(2), BrokerId(3))
PATHS = PartitionPaths("t", 0)
READS = ("epoch", "original", "isr")
"""In the order in which they are read."""


def plain(view: PartitionView) -> PartitionView:
    """Return what elections and changes of the in-sync set have made; `syncStart` is beside it."""
    return msgspec.structs.replace(view, sync_start=0)


class Both:
    """The znodes in a tree, and the partition as the simulator keeps it."""

    def __init__(self, reads: tuple[str, ...] = READS) -> None:
        self.tree = ZookeeperTree()
        self.model = PartitionZnodes(BROKERS, preferred=BROKERS[0])
        self.sessions: dict[BrokerId, tuple[int, int]] = {}
        self.reading: dict[BrokerId, list[Znode | None]] = {}
        self.known: dict[BrokerId, Seen] = {}
        self.views = [plain(self.model.view())]
        self.done = 0
        self._reads = reads
        maker = self.tree.begin_session()
        for path in ("/orderwire", "/orderwire/topics"):
            self.tree.ask(maker, Create(path))
        topic = Topic("t", bytes(16), 1, {}, (BROKERS,))
        made = self.tree.ask(maker, Multi(create_topic(topic)))
        assert not isinstance(made, MultiFailure)
        for broker in BROKERS:
            self.begin(broker)

    def begin(self, broker: BrokerId) -> None:
        self.sessions[broker] = self.tree.begin_session(), self.model.begin_session(broker)
        self.reading[broker] = []  # What it knew it may still believe.

    def expire(self, broker: BrokerId) -> None:
        in_tree, in_model = self.sessions[broker]
        self.tree.end_session(in_tree)
        self.model.end_session(in_model)
        self.views.append(plain(self.model.view()))
        self.begin(broker)

    def read(self, broker: BrokerId) -> None:
        """One of the three answers of a reading arrives; the others come later."""
        found = self.reading[broker]
        path = f"{PATHS.me}/{self._reads[len(found)]}"
        answer = self.tree.ask(self.sessions[broker][0], Get(path))
        assert answer is Failure.NO_ZNODE or isinstance(answer, Znode)
        found.append(answer if isinstance(answer, Znode) else None)
        if len(found) == len(READS):
            by_name = dict(zip(self._reads, found, strict=True))
            epoch, original, isr = (by_name[name] for name in READS)
            assert epoch is not None
            assert isr is not None
            now = seen(PATHS, epoch, original, isr)
            if now is not None:
                assert plain(now.view(BROKERS)) in self.views, "a view that never was"
                self.known[broker] = now
            self.reading[broker] = []

    def ask(self, broker: BrokerId, wish: Elect | Resign | ChangeIsr | SetSync | Replace) -> None:
        now = self.known.get(broker)
        if now is None:
            return
        match wish:
            case Elect(epoch):
                found = elect(PATHS, now, broker, "x", epoch)
                operations = None if found is None else found[1]
            case Resign(epoch):
                operations = resign(PATHS, now, broker, epoch)
            case ChangeIsr():
                operations = change_isr(PATHS, now, broker, wish)
            case Replace():
                operations = replace(PATHS, now, wish)
            case SetSync():
                there = self.tree.ask(self.sessions[broker][0], Get(PATHS.sync_start))
                assert isinstance(there, Znode)
                least = SyncMark.decode(PATHS.sync_start, there.data).offset
                operations = set_sync(PATHS, now, broker, wish, least)
        done = operations is not None and not isinstance(
            self.tree.ask(self.sessions[broker][0], Multi(operations)), MultiFailure
        )
        fresh = plain(now.view(BROKERS)) == plain(self.model.view())
        if not (done or fresh):
            return  # It reads again, and asks again.
        marks = (self.model.sync_start, self.model.sync_end)
        if isinstance(wish, Replace):
            changed = self.model.replace(wish)
        else:
            changed = self.model.apply(self.sessions[broker][1], wish)
        if isinstance(wish, SetSync):
            changed = done and marks != (self.model.sync_start, self.model.sync_end)
        assert changed or not done or isinstance(wish, SetSync), f"{wish}: the model refuses"
        assert done or not changed, f"{wish}: the model does it"
        self.done += done
        self.views.append(plain(self.model.view()))

    def want(self, broker: BrokerId) -> None:
        """Ask for what makes sense by what it knows."""
        now = self.known.get(broker)
        if now is None:
            return
        if now.original is None and now.isr_version % 3 == 2:
            self.ask(broker, Replace(broker, now.isr_version, now.epoch))
        elif now.original is None:
            self.ask(broker, Elect(now.epoch))
        else:
            isr = tuple(sorted({broker, BROKERS[now.isr_version % len(BROKERS)]}))
            self.ask(broker, ChangeIsr(isr, now.isr_version, now.epoch))

    def view(self) -> PartitionView:
        """Read at one moment."""
        session = self.sessions[BROKERS[0]][0]
        epoch, original, isr = (self.tree.ask(session, Get(f"{PATHS.me}/{name}")) for name in READS)
        assert isinstance(epoch, Znode)
        assert isinstance(isr, Znode)
        now = seen(PATHS, epoch, original if isinstance(original, Znode) else None, isr)
        assert now is not None
        return plain(now.view(BROKERS))


epochs = st.integers(-1, 3)
wishes = st.one_of(
    st.builds(Elect, epochs),
    st.builds(Elect, epochs),
    st.builds(Resign, epochs),
    st.builds(Replace, st.sampled_from(BROKERS), st.integers(0, 3), epochs),
    st.builds(SetSync, st.integers(1, 9), st.none() | st.integers(1, 9), epochs, st.integers(1, 9)),
    st.tuples(st.sets(st.sampled_from(BROKERS), min_size=1), st.integers(0, 3), epochs),
)
steps = st.lists(
    st.tuples(
        st.sampled_from(BROKERS),
        st.sampled_from(["read"] * 3 + ["ask", "ask", "know", "know", "late", "late", "expire"]),
        wishes,
    ),
    min_size=20,
    max_size=80,
)


def run(both: Both, drawn: list[tuple[BrokerId, str, object]]) -> None:
    for broker, what, wish in drawn:
        match what, wish:
            case "read", _:
                both.read(broker)
            case "know", _:  # Read all, and want what suits.
                both.reading[broker] = []
                for _ in READS:
                    both.read(broker)
                both.want(broker)
            case "late", _:  # It does not know what has happened since.
                both.want(broker)
            case "expire", _:
                both.expire(broker)
            case _, (set() as members, int() as version, int() as epoch):
                isr = tuple(sorted({*members, broker}))
                both.ask(broker, ChangeIsr(isr, version, epoch))
            case _, (Elect() | Resign() | SetSync() | Replace()) as asked:
                both.ask(broker, asked)
        assert both.view() == plain(both.model.view())
    model = both.model
    for path, kept in ((PATHS.sync_start, model.sync_start), (PATHS.sync_end, model.sync_end)):
        znode = both.tree.ask(both.sessions[BROKERS[0]][0], Get(path))
        assert isinstance(znode, Znode)
        mark = SyncMark.decode(path, znode.data)
        assert (mark.offset, mark.epoch, mark.round) == kept or znode.version == 0


@settings(max_examples=100)
@given(steps)
def test_transactions_do_what_the_partition_does(drawn: list[tuple[BrokerId, str, object]]) -> None:
    run(Both(), drawn)


def torn(order: tuple[str, ...]) -> None:
    """Read in some order while the original changes, and then the in-sync set."""
    both = Both(order)
    one, two, reader = BROKERS

    def know(broker: BrokerId) -> Seen:
        both.reading[broker] = []
        for _ in READS:
            both.read(broker)
        return both.known[broker]

    know(one)
    both.ask(one, Elect(-1))
    know(one)
    both.read(reader)
    both.ask(one, ChangeIsr((one, two), 0, 0))
    both.expire(one)
    know(two)
    both.ask(two, Elect(0))
    both.read(reader)
    both.read(reader)
    assert both.done == 3


def test_the_epoch_has_to_be_read_first() -> None:
    torn(READS)
    with pytest.raises(AssertionError, match="never was"):
        torn(("isr", "original", "epoch"))
