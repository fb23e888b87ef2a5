"""The znodes of one partition, as ZooKeeper keeps them: nothing but compare-and-set.  [S004:4.6]"""

from orderwire.broker.replication.effects import (
    ChangeIsr,
    Elect,
    Lock,
    Lose,
    Replace,
    Resign,
    SetSync,
    Unlock,
)
from orderwire.broker.replication.view import BrokerId, Loss, PartitionView, with_loss

Session = int


class PartitionZnodes:
    """One partition's znodes, and who is connected."""

    def __init__(self, replicas: tuple[BrokerId, ...], preferred: BrokerId | None = None) -> None:
        self.replicas = replicas
        self.preferred = preferred
        self.epoch = -1
        self.original: BrokerId | None = None
        self.owner: Session | None = None
        """The session of the ephemeral `original`."""
        self.isr = replicas
        self.version = 0
        self.sync_start = (0, -1, -1)
        """Offset, epoch, round: as whoever writes it says."""
        self.sync_end = (0, -1, -1)
        self.losses: tuple[Loss, ...] = ()
        self.unclean = False
        """Whether the in-sync set was put in the place of one that is gone."""
        self.locks: dict[BrokerId, Session] = {}
        self.sessions: dict[Session, BrokerId] = {}
        self._session = 0

    def view(self) -> PartitionView:
        """What a read would say now."""
        return PartitionView(
            self.epoch,
            self.original,
            self.isr,
            self.version,
            self.replicas,
            self.preferred,
            self.sync_start[0],
            self.losses,
            self.unclean,
        )

    def begin_session(self, broker: BrokerId) -> Session:
        """A broker connects anew."""
        self._session += 1
        self.sessions[self._session] = broker
        return self._session

    def end_session(self, session: Session) -> bool:
        """Ephemeral znodes go; returns whether the partition's view changed."""
        self.sessions.pop(session, None)
        self.locks = {broker: each for broker, each in self.locks.items() if each != session}
        if self.owner != session:
            return False
        self.original = self.owner = None
        return True

    def replace(self, wish: Replace) -> bool:
        """Put one replica in the place of an in-sync set that is gone; whether it was done."""
        same = (wish.version, wish.epoch) == (self.version, self.epoch)
        if not same or self.original is not None:
            return False
        self.isr, self.unclean = (wish.member,), True
        self.version += 1
        return True

    def least_sync(self) -> int:
        """Whoever writes marks has seen this one, and leaves out what lies below.  [I6]"""
        return self.sync_start[0]

    def apply(
        self,
        session: Session,
        operation: Elect | Resign | ChangeIsr | SetSync | Lose | Lock | Unlock,
    ) -> bool:
        """Carry out one request of a living session; returns whether the view changed."""
        broker = self.sessions.get(session)
        if broker is None:
            return False
        match operation:
            case Elect(epoch):
                if epoch != self.epoch or self.original is not None or broker not in self.isr:
                    return False
                self.epoch += 1
                self.original, self.owner = broker, session
                return True
            case Resign(epoch):
                if epoch != self.epoch or self.original != broker:
                    return False
                self.original = self.owner = None
                return True
            case ChangeIsr(isr, version, epoch):
                ours = self.original == broker and self.owner == session
                if version != self.version or epoch != self.epoch or not ours:
                    return False
                assert isr, "an in-sync set is never empty"
                self.isr = tuple(sorted(isr))
                self.version += 1
                return True
            case SetSync(start, end, epoch, number):
                if self.owner != session or epoch != self.epoch:
                    return False
                least = self.least_sync()
                if start is not None and start >= least:
                    self.sync_start = (start, epoch, number)
                if end is not None and end >= least:
                    self.sync_end = (end, epoch, number)
            case Lose(epoch, start, end, unclean):
                if self.owner != session or epoch != self.epoch:
                    return False
                self.losses = with_loss(self.losses, Loss(epoch, start, end, unclean))
                self.unclean = False
                self.version += 1
                self.sync_start = self.sync_end = (start, epoch, 0)
                return True
            case Lock():
                self.locks[broker] = session
            case Unlock():
                self.locks.clear()
        return False
