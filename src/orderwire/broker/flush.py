"""When what was written is put on disk."""

from enum import Enum


class Flush(Enum):
    """When a produce request is answered."""

    NONE = "none"
    """When its batches are in the page cache: they survive the process, not the machine."""
    GROUP = "group"
    """When they are on disk; requests that wait at the same time share one fdatasync."""
    MESSAGE = "message"
    """When they are on disk; every request has its own fdatasync."""
