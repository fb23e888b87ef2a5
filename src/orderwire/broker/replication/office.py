"""Who is original, and who is in sync, as one replica knows it: election, fencing, changes.

What ZooKeeper says comes in as views; what we want of it goes out as effects.  Every protocol of a
replicated partition uses it.  [R2, R5, R7, S004:4.6]
"""

from orderwire.broker.replication.effects import ChangeIsr, Effects, Elect, Resign
from orderwire.broker.replication.kept import Kept
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.kernel import Instant


class Office:
    """One replica's view of a partition's offices."""

    def __init__(self, me: BrokerId, retry_ns: int, kept: Kept) -> None:
        self.me = me
        self._kept = kept
        self.view: PartitionView | None = None
        """The newest that we were told."""
        self.epoch: int | None = None
        """We are original of this epoch; None while we are not."""
        self.retry_ns = retry_ns
        """After so long a change is asked for again."""
        self._electing: int | None = None
        self._changing: ChangeIsr | None = None
        self._asked_at: Instant = Instant(0)

    @property
    def isr(self) -> tuple[BrokerId, ...]:
        """The in-sync set; empty while nobody has told us."""
        return self.view.isr if self.view is not None else ()

    @property
    def in_sync(self) -> bool:
        """Whether we are in the in-sync set, as far as we know."""
        return self.view is not None and self.me in self.view.isr

    @property
    def original(self) -> BrokerId | None:
        """Who is, as far as we know."""
        return self.view.original if self.view is not None else None

    @property
    def changing(self) -> bool:
        """Whether a change of the in-sync set may still come true."""
        return self._changing is not None

    def viewed(self, view: PartitionView) -> Effects | None:
        """Take a view; None when it is older than what we know.  `epoch` says what we are now.

        A member that has lost its disk does not contend: what is committed would be gone with it.
        Whoever lets one in again has seen that it has everything; and before the first election
        there is nothing to have.  [R7, S004:9.10]  Raises StorageError.
        """
        old = self.view
        if old is not None and _age(view) < _age(old):
            return None
        self.view = view
        effects: Effects = []
        changing = self._changing
        if changing is not None and (
            # A refusal shows as another version, or as another original: a view that was read
            # before the request came through says neither.
            view.version != changing.version
            or view.epoch != changing.epoch
            or view.original != self.me
        ):
            self._changing = None
        if self.epoch is not None and (view.epoch != self.epoch or view.original != self.me):
            self.epoch = None
        electing = self._electing
        if view.original == self.me and self.epoch is None:
            if electing is not None and view.epoch == electing + 1:
                self.epoch = view.epoch
            else:  # of a session or a process that is gone
                effects.append(Resign(view.epoch))
        if view.epoch < 0 or self.me not in view.isr:
            self._kept.settle()
        if view.original is None and self.me in view.isr and not self._kept.is_blank:
            self._electing = view.epoch
            effects.append(Elect(view.epoch))
        else:
            self._electing = None
        return effects

    def lose(self) -> None:
        """The session has ended, or may have: we are nothing any more."""
        self.epoch = self._electing = self._changing = None

    def resign(self) -> Effects:
        """Give up being original."""
        epoch = self.epoch
        if epoch is None:
            return []
        self.lose()
        return [Resign(epoch)]

    def change(self, isr: tuple[BrokerId, ...], now: Instant) -> Effects:
        """Ask for another in-sync set; nothing while another request is under way."""
        view = self.view
        if self.epoch is None or view is None or self._changing is not None or isr == view.isr:
            return []
        assert self.me in isr, "an original stays in the in-sync set"
        self._changing = ChangeIsr(isr, view.version, self.epoch)
        self._asked_at = now
        return [self._changing]

    def wake(self, now: Instant) -> Effects:
        """Ask again for what nobody has answered: the request may be lost."""
        changing = self._changing
        if changing is None or now < self._asked_at + self.retry_ns:
            return []
        self._asked_at = now
        return [changing]

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        return None if self._changing is None else Instant(self._asked_at + self.retry_ns)


def _age(view: PartitionView) -> tuple[int, int, bool]:
    """Within an epoch an original only goes."""
    return view.epoch, view.version, view.original is None
