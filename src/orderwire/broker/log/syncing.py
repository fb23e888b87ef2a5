"""Waiting for the disk, outside the thread that owns the log."""

from orderwire.broker.log.storage import LogFile, Storage


class SyncJob:
    """Files that hold unsynced data.  `run` blocks, changes nothing, and may run in a thread."""

    def __init__(
        self,
        *,
        closed: tuple[LogFile, ...],
        active: LogFile,
        directory: Storage | None,
        names: int,
        end_offset: int,
    ) -> None:
        self.closed = closed
        """Segments that were complete when the job was made."""
        self._active = active
        self._directory = directory
        self.names = names
        """How many new names the job makes durable."""
        self.end_offset = end_offset
        """Everything before this offset is durable when `run` returns."""

    def run(self) -> None:
        """Wait for the disk.  Raises StorageError."""
        for file in self.closed:
            file.sync()
        self._active.sync()
        if self._directory is not None:
            self._directory.sync_directory()
