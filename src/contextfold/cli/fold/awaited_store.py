"""A store whose calls have to be awaited: one on NATS, or one that the folding service changes."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from contextfold.app import make_policy, open_store
from contextfold.cli.fold.session_access import OpenStore, store_settings
from contextfold.common.relevance.question import Question
from contextfold.fold.ports.store import (
    ArchivedThread,
    EndedSession,
    ListedSession,
    Recalled,
    RecallSource,
    SessionKey,
    SessionLog,
    Store,
    Summary,
    Trajectory,
)
from contextfold.fold.recall.documents import DocumentTerms
from contextfold.fold.recall.ranking import RecallScope
from contextfold.fold.service.stored_sessions import StoredSessions
from contextfold.settings import FoldSettings


class AwaitedStore(OpenStore):
    """An open store, and the event loop in which its calls are awaited."""

    def __init__(self, settings: FoldSettings) -> None:
        """Open the store. Neither a missing file nor a missing prefix is created."""
        self.settings = settings
        self.store: Store = open_store(settings, may_migrate=False)
        self._runner = asyncio.Runner()
        self.run = self._runner.run
        super().__init__(StoredSessions(BlockingReader(self.store, self._runner), make_policy(settings)))

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._runner.close()


def open_awaited_store(args: argparse.Namespace) -> AwaitedStore:
    return AwaitedStore(store_settings(args))


class BlockingReader:
    """Reads a store for a command: each call runs in the event loop until it is done."""

    def __init__(self, store: Store, runner: asyncio.Runner) -> None:
        self._store, self._run = store, runner.run

    def load(self, key: SessionKey) -> SessionLog | None:
        return self._run(self._store.load(key))

    def sessions(self, owner: str, *, after: tuple[str, str] | None = None, limit: int) -> Sequence[ListedSession]:
        return self._run(self._store.sessions(owner, after=after, limit=limit))

    def ended_sessions(
        self, owner: str, *, after: tuple[str, str] | None = None, limit: int, session_id: str | None = None
    ) -> Sequence[EndedSession]:
        return self._run(self._store.ended_sessions(owner, after=after, limit=limit, session_id=session_id))

    def find(self, owner: str, session_id: str) -> SessionKey | None:
        return self._run(self._store.find(owner, session_id))

    def search(self, owner: str, query: str, project_hash: str | None, limit: int) -> Sequence[Summary]:
        return self._run(self._store.search(owner, query, project_hash, limit))

    def summaries(self, owner: str, project_hash: str | None) -> Sequence[Summary]:
        return self._run(self._store.summaries(owner, project_hash))

    def unindexed(self, owner: str | None, limit: int) -> Sequence[RecallSource]:
        return self._run(self._store.unindexed(owner, limit))

    def index(self, documents: Sequence[tuple[RecallSource, DocumentTerms | None]]) -> None:
        return self._run(self._store.index(documents))

    def recall(self, owner: str, question: Question, scope: RecallScope) -> Recalled:
        return self._run(self._store.recall(owner, question, scope))

    def trajectory(
        self, thread: ArchivedThread, *, after_n: int = 0, limit: int, characters: int | None = None
    ) -> Trajectory | None:
        return self._run(self._store.trajectory(thread, after_n=after_n, limit=limit, characters=characters))

    def left_out_text(self, owner: str, result_id: str) -> str | None:
        return self._run(self._store.left_out_text(owner, result_id))

    def close(self) -> None:
        return self._run(self._store.close())
