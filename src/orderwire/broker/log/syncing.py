"""Waiting for the disk, outside the thread that owns the log."""

from orderwire.broker.log.storage import LogFile, Storage

CHECKPOINT = "checkpoint"
"""Names what was durable at some time: a recovery begins behind it."""


class SyncJob:
    """Files that hold unsynced data.  `run` blocks, changes no object, and may run in a thread."""

    def __init__(
        self,
        *,
        closed: tuple[LogFile, ...],
        active: LogFile,
        storage: Storage,
        new_names: bool,
        names: int,
        end_offset: int,
        checkpoint: bytes | None,
        cuts: int = 0,
        epochs: LogFile | None = None,
    ) -> None:
        self.closed = closed
        """Segments that were complete when the job was made."""
        self.epochs = epochs
        """The epochs' file, when it has grown."""
        self._active = active
        self._storage = storage
        self._new_names = new_names
        self.names = names
        """How many new names the job makes durable."""
        self.end_offset = end_offset
        """Everything before this offset is durable when `run` returns."""
        self._checkpoint = checkpoint
        self.cuts = cuts
        """The last cut before the job was made."""

    def run(self) -> None:
        """Wait for the disk.  Raises StorageError."""
        if self.epochs is not None:  # before what was written in them
            self.epochs.sync()
        for file in self.closed:
            file.sync()
        self._active.sync()
        if self._new_names:
            self._storage.sync_directory()
        if self._checkpoint is not None:  # only now is it true
            self._storage.replace_file(CHECKPOINT, self._checkpoint)
