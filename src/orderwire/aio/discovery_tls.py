"""Mutual TLS between the members of a domain: who has no certificate of its CA learns nothing."""

import ssl
from pathlib import Path

import msgspec

from orderwire.kernel import LocalProtocolError


class Credentials(msgspec.Struct, frozen=True):
    """The two sides of every connection: TLS 1.3, both show a certificate of the domain's CA.

    Which member shows it does not matter: whoever has one is trusted in the domain.
    """

    server: ssl.SSLContext
    client: ssl.SSLContext

    @classmethod
    def load(cls, *, cert: Path | str, key: Path | str, ca: Path | str) -> "Credentials":
        """Read PEM files: our certificate, its key, and the CA of the domain.

        Raises LocalProtocolError when a file cannot be read or does not fit.
        """
        contexts = []
        for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
            context = ssl.SSLContext(protocol)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.check_hostname = False  # Members are known by the CA, not by their names.
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(ca)
                context.load_cert_chain(cert, key)
            except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
                raise LocalProtocolError(f"TLS files {cert}, {key} and {ca}: {error}") from error
            contexts.append(context)
        return cls(*contexts)
