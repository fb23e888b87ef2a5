"""What the broker knows about one API."""

from collections.abc import Callable
from typing import Any

import msgspec


class Api(msgspec.Struct, frozen=True, kw_only=True):
    """One API: its versions and its codec."""

    key: int
    name: str
    oldest: int
    """The first version that we decode."""
    newest: int
    advertised_oldest: int
    """The first version that ApiVersions announces."""
    flexible_from: int | None
    """The first version with compact fields and tags; None when there is none."""
    decode_request: Callable[[memoryview, int, int], tuple[msgspec.Struct, int]]
    encode_request: Callable[[Any, int], bytes]
    decode_response: Callable[[memoryview, int, int], tuple[msgspec.Struct, int]]
    encode_response: Callable[[Any, int], bytes]

    def request_header_version(self, version: int) -> int:
        """2 for flexible versions (tags behind the client id), else 1."""
        return 2 if self.flexible_from is not None and version >= self.flexible_from else 1

    def response_header_version(self, version: int) -> int:
        """1 for flexible versions, else 0.

        ApiVersions answers with 0 always: its client cannot know yet what we understand.
        """
        if self.key == _API_VERSIONS:
            return 0
        return 1 if self.flexible_from is not None and version >= self.flexible_from else 0


_API_VERSIONS = 18
