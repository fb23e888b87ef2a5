"""A log that does not read as it was written: set aside, and copied again from a peer.  [S004:9.10]

The replica is blank then: it does not contend, its original removes it from the in-sync set, and it
comes back with everything that is committed.  Its journal, its orphans and its lane stay: they have
checksums of their own, and may hold what nobody else has.  [I4]
"""

from collections.abc import Callable

from orderwire.broker.log import LogDamaged, Storage
from orderwire.broker.log.model import DAMAGED
from orderwire.broker.replication.kept import Kept
from orderwire.broker.replication.replica import Replica

_ASIDE = "aside-"
_STAYS = (_ASIDE, "pending-", "orphans-", "lane-0")


def open_or_set_aside(
    storage: Storage,
    open_replica: Callable[[], Replica],
    check_bytes: int,
    found: str | None = None,
) -> tuple[Replica, str | None]:
    """Open a replica; should its log be damaged, without it, and say why.

    So much of the log's newest part is checked; `found` is what was found before.  Raises
    StorageError, and LogDamaged for what cannot be done without.
    """
    told = storage.read_file(DAMAGED)
    reason = None if told is None else told.decode(errors="replace")
    if reason is None and found is not None:
        reason = found
        storage.replace_file(DAMAGED, reason.encode())
    if reason is None:
        try:
            replica = open_replica()
            replica.log.check(check_bytes)
        except LogDamaged as error:
            reason = str(error)
            storage.replace_file(DAMAGED, reason.encode())
        else:
            return replica, None
    _set_aside(storage)
    return open_replica(), reason


def _set_aside(storage: Storage) -> None:
    """Durable on return; a crash on the way is made up for at the next start."""
    Kept.make_blank(storage)
    names = storage.names()
    for name in names:  # of an earlier time
        if name.startswith(_ASIDE):
            storage.remove(name)
    for name in names:
        if not name.startswith(_STAYS) and name not in (DAMAGED, Kept.NAME):
            storage.rename(name, f"{_ASIDE}{name}.kept")
    storage.sync_directory()
    storage.remove(DAMAGED)
    storage.sync_directory()
