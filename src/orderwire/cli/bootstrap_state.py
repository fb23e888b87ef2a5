"""What a bootstrap server keeps between its lives, and what a new one makes of it.

Decision 0023.
"""

import contextlib
import os
import stat
import tempfile
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

import msgspec

from orderwire.aio.addresses import is_loopback, split_address
from orderwire.kernel import LocalProtocolError, parsed

_READABLE_CHARACTERS = 60
"""Of a domain's name in a file's name; the digest behind it is of all of it."""


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What must survive a restart."""

    epoch: int
    """Of the last start: the next one's is larger. [FDP/1 R1]"""
    held: bool = True
    """Whether ids may be held: false only after an end at which none was."""

    @classmethod
    def read(cls, path: Path) -> "State | None":
        """Return what was saved, or None when nothing was.  Raises LocalProtocolError."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        what = f"--state {path} is no state of a server"
        return parsed(msgspec.json.Decoder(cls).decode, data, what, LocalProtocolError)

    def save(self, path: Path) -> None:
        """Replace the file, so that a crash leaves the old one or the new one.  Raises OSError."""
        new = path.with_name(f"{path.name}.new")
        with new.open("wb") as file:
            file.write(msgspec.json.encode(self))
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)


def runtime_path(domain: str, address: str) -> Path:
    """Return where a server of this domain and address keeps its state if no file is named.

    In `$XDG_RUNTIME_DIR`, or in a folder of ours among the temporary files.  Raises
    LocalProtocolError when that is another's, OSError.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base:
        folder = Path(base) / "orderwire"
    else:
        folder = Path(tempfile.gettempdir()) / f"orderwire-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise LocalProtocolError(f"{folder} is not a folder of ours: name a file with --state")
    digest = sha256(f"{domain}\n{address}".encode()).hexdigest()[:12]
    readable = quote(domain, safe="")[:_READABLE_CHARACTERS]
    return folder / f"bootstrap-{readable}-{address.replace(':', '-')}-{digest}.json"


def must_recover(before: State | None, *, address: str, listen: str, first: bool) -> bool:
    """Whether ids may be held that this server does not know of.

    `address` is the server's, `listen` what it was told: with port 0 nobody can have known it.
    """
    if split_address(listen)[1] == 0:
        return False
    if before is not None:
        return before.held
    return not (first or is_loopback(split_address(address)[0]))


class Keeper:
    """One server's state file."""

    def __init__(self, path: Path, *, lasting: bool) -> None:
        """`lasting`: somebody may start a server at this address again."""
        self.path = path
        self._lasting = lasting
        self.before = State.read(path)

    def begin(self, epoch: int) -> None:
        """Note that a server runs.  Raises OSError."""
        State(epoch).save(self.path)

    def end(self, epoch: int, *, held: bool) -> None:
        """Note that it has ended well.  Raises OSError."""
        if held or self._lasting:
            State(epoch, held).save(self.path)
        else:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
