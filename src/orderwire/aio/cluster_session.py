"""The key of a broker's ZooKeeper session, kept in its data directory.

Whoever starts the broker again over the same directory, whose lock says that the process before is
no more, ends that one's session by it instead of waiting until ZooKeeper misses it.
"""

import contextlib
import logging
import os
from pathlib import Path

import msgspec

from orderwire.aio.zookeeper_client import SessionKey
from orderwire.kernel.parsing import UNREADABLE

_LOG = logging.getLogger(__name__)
_FILE = "zookeeper-session"
_NEW = ".new"


class _Kept(msgspec.Struct, frozen=True):
    ensemble: str
    session: int
    password: bytes


class KeptSession:
    """The file, for its owner's eyes only: who has the key has the session.

    Without it a start takes longer, and nothing is wrong: what fails here is only told.
    """

    def __init__(self, directory: Path, ensemble: str) -> None:
        """`directory` is locked by us.  A key of another ensemble is no use, and is not shown to
        this one."""
        self._path = directory / _FILE
        self._ensemble = ensemble

    def read(self) -> SessionKey | None:
        """Return the key that was kept last; None when there is none that could be used."""
        try:
            kept = msgspec.json.decode(self._path.read_bytes(), type=_Kept)
        except FileNotFoundError:
            return None
        except (OSError, *UNREADABLE) as error:
            _LOG.warning("%s does not read: %s", self._path, error)
            return None
        return (kept.session, kept.password) if kept.ensemble == self._ensemble else None

    def keep(self, key: SessionKey) -> None:
        """Put this key in place of the one before."""
        new = self._path.with_name(_FILE + _NEW)
        try:
            with contextlib.suppress(FileNotFoundError):
                new.unlink()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(new, flags, 0o600), "wb") as file:
                file.write(msgspec.json.encode(_Kept(self._ensemble, *key)))
            new.replace(self._path)
        except OSError as error:
            _LOG.warning("%s cannot be written: %s", self._path, error)

    def forget(self) -> None:
        """The session was ended properly."""
        with contextlib.suppress(OSError):
            self._path.unlink()
