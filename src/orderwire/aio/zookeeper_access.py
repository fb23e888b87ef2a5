"""What a ZooKeeper ensemble asks of its clients: TLS, a certificate, a user's name."""

import ssl
from pathlib import Path

import msgspec

from orderwire.kernel import LocalProtocolError

SESSION_MS_MIN = 1_000
"""A shorter session ends when a process or the ensemble is busy."""


class ZookeeperAccess(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an ensemble is sure of us, and we of it.  Raises LocalProtocolError on a contradiction.

    With a `ca` all goes over TLS: servers must show a certificate of that CA, or of one that the
    system trusts, for the name that they are called by.
    """

    ca: Path | None = None
    """PEM: the CA of the ensemble's servers."""
    cert: Path | None = None
    """PEM: our certificate, where the ensemble asks for one."""
    key: Path | None = None
    check_hostname: bool = True
    """Whether certificates must name the host that is called."""
    digest: str | None = None
    """`user:password` of ZooKeeper's digest scheme.  What we make is then that user's alone, so all
    who share a chroot must give the same."""

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None) or (self.cert and not self.ca):
            raise LocalProtocolError(
                "TLS to ZooKeeper: a certificate needs its key, and both need the ensemble's CA"
            )
        for path in (self.ca, self.cert, self.key):
            if path is not None and not path.is_file():
                raise LocalProtocolError(f"TLS to ZooKeeper: there is no file {path}")
        if self.ca is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            try:
                context.load_verify_locations(self.ca)
                if self.cert is not None:
                    context.load_cert_chain(self.cert, self.key)
            except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
                raise LocalProtocolError(f"TLS to ZooKeeper, {self.ca}: {error}") from error
        if self.digest is not None and not all(self.digest.partition(":")):
            raise LocalProtocolError("ZooKeeper's digest must be `user:password`")
