"""A fold service that receives sent requests, with functions that read what it recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from contextfold.fold.events import Event, FoldSeen, RequestSent
from contextfold.fold.project import Caller, Target, project_at, target_of
from contextfold.fold.sent_request import RequestReport, Share, Usage
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.service.reports import Activity
from contextfold.fold.store import Store
from contextfold.scrub.scrubber import standard_scrubber
from tests.support.receipts import receipt_of

ME = Caller("local")
PROJECT = {"project_path": "/work/app"}
TARGET: Target = target_of(ME, project_at("/work/app"))
KEY = TARGET.key
SCRUBBER = standard_scrubber()
SECRET = "ghp_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"


def main_share(tokens: int, *texts: str, messages: int | None = None) -> Share:
    return Share(None, tokens, len(texts) if messages is None else messages, texts)


def sent_request(
    number: int, *shares: Share, usage: Usage | None = None, folds: Sequence[FoldSeen] = (), **more: Any
) -> RequestReport:
    after = sum(share.tokens for share in shares)
    before = after + sum(fold.tokens for fold in folds)
    figures = {name: more.pop(name) for name in ("turns_dropped", "first_changed", "reason") if name in more}
    receipt, model = receipt_of(before, after, *folds, **figures), more.pop("model", "a-model")
    return RequestReport(f"request {number}", "anthropic", model, receipt, usage, shares, **{"has_tools": True, **more})


class LedgerHarness:
    """A fold service on a store, and what tests read of it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.activities: list[Activity] = []
        self.service = self.another_service()

    def another_service(self) -> FoldService:
        return FoldService(self.store, SCRUBBER, note=self.activities.append)

    def send(self, number: int, *shares: Share, **more: Any) -> None:
        """Reports a request to the service."""
        self.service.reports.receive(TARGET, sent_request(number, *shares, **more))

    async def branch(self) -> str:
        request = {"description": "d", "prompt": "p" * 40, **PROJECT}
        return str((await self.service.open_branch(ME, request)).answer["branch_id"])

    async def fold(self) -> None:
        await self.service.return_branch(ME, {"message": "m" * 40, **PROJECT})

    async def record(self, tokens: int) -> None:
        await self.service.record(ME, {"type": "t", "tokens": tokens, **PROJECT}, "reported")

    async def figures(self) -> dict[str, Any]:
        status: Mapping[str, Any] = (await self.service.branch_status(ME, PROJECT)).answer
        return dict(status["token_breakdown"])

    async def main_texts(self) -> list[str]:
        session_id = (await self.service.look(KEY)).session_id
        page: Any = await self.service.page(KEY, None, session_id, 100_000, (0, 0))
        return [entry["text"] for entry in page["entries"]]

    async def expanded(self, branch_id: str) -> list[dict[str, Any]]:
        request = {"branch_id": branch_id, "budget": 100_000, **PROJECT}
        return list((await self.service.expand(ME, request)).answer["entries"])

    async def log(self) -> list[Event]:
        await self.service.reports.settle(KEY)
        log = await self.store.load(KEY)
        return list(log.events) if log else []

    async def requests(self) -> list[RequestSent]:
        return [event for event in await self.log() if isinstance(event, RequestSent)]
