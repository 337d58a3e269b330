"""A SQLite store in a file of its own, for tests that need some store."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path

from contextfold.stores.sqlite.store import SqliteStore

# A folder in memory, where a flush takes no time.
IN_MEMORY = Path("/dev/shm")


class TemporaryStore(SqliteStore):
    """Its file is deleted when it is closed, or else at the end of the process."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="contextfold-store-", dir=IN_MEMORY if IN_MEMORY.is_dir() else None)
        self._delete = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        super().__init__(Path(folder) / "state.db")

    async def close(self) -> None:
        await super().close()
        self._delete()
