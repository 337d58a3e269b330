"""The store of a daemon without the folding tools: it is always empty, and needs no file."""

from __future__ import annotations


class NoStore:
    """Such a daemon asks whether its store is ready and sweeps it. Nothing calls the other methods of the port."""

    async def expire(self, idle_since: str, at: str) -> int:
        return 0

    async def retain(self, archive_since: str, summaries_since: str) -> None:
        pass

    async def unindexed(self, owner: str | None, limit: int) -> tuple[()]:
        return ()

    async def count(self, owner: str | None = None) -> int:
        return 0

    async def reach(self) -> None:
        pass

    async def check(self) -> None:
        pass

    async def close(self) -> None:
        pass
