"""`context_expand` of a tool result that the proxy left out of requests."""

from __future__ import annotations

from typing import Any

import pytest

from contextfold.errors import ArgumentInvalid, StoreUnavailable
from contextfold.fold.project import Caller
from contextfold.fold.service.fold_service import FoldService
from contextfold.fold.store import ArchivedResult, LeftOutDecision
from contextfold.scrub.scrubber import standard_scrubber
from tests.support.temporary_store import TemporaryStore

TEXT = "".join(f"line {number} é\n" for number in range(1_000))


async def service_with_result() -> FoldService:
    store = TemporaryStore()
    decision = LeftOutDecision("call_1", "hash", "res_1", "[stub]", "2026-01-01T12:00:00Z")
    await store.keep_left_out("ann", "conversation", [ArchivedResult(decision, TEXT)])
    return FoldService(store, standard_scrubber())


async def expand(service: FoldService, owner: str, result_id: str, **more: object) -> Any:
    request = {"project_path": "/work/app", "branch_id": result_id, **more}
    return (await service.expand(Caller(owner), request)).answer


async def test_a_result_comes_back_page_by_page_within_the_budget() -> None:
    service = await service_with_result()
    texts, cursor, pages = [], None, 0
    while pages == 0 or cursor:
        page = await expand(service, "ann", "res_1", budget=500, cursor=cursor)
        assert (page["branch_id"], page["tokens"] <= 500) == ("res_1", True)
        texts += [entry["text"] for entry in page["entries"]]
        cursor, pages = page["next_cursor"], pages + 1
    assert "".join(texts) == TEXT
    assert pages > 3


@pytest.mark.parametrize(("owner", "result_id"), [("bob", "res_1"), ("ann", "res_2"), ("ann", "res_")])
async def test_ids_of_other_owners_and_unknown_ids_are_refused_alike(owner: str, result_id: str) -> None:
    with pytest.raises(ArgumentInvalid) as raised:
        await expand(await service_with_result(), owner, result_id)
    assert "line 1" not in str(raised.value)


async def test_an_expired_result_is_refused() -> None:
    service = await service_with_result()
    await service.store.retain("2026-06-01T00:00:00Z", "2026-06-01T00:00:00Z")
    with pytest.raises(ArgumentInvalid):
        await expand(service, "ann", "res_1")


class UnavailableStore(TemporaryStore):
    async def left_out_text(self, owner: str, result_id: str) -> str | None:
        raise StoreUnavailable("away")


async def test_an_unavailable_store_is_not_reported_as_an_unknown_id() -> None:
    with pytest.raises(StoreUnavailable):
        await expand(FoldService(UnavailableStore(), standard_scrubber()), "ann", "res_1")


@pytest.mark.parametrize("cursor", ["0.999999999", "7.0"])
async def test_a_cursor_beyond_the_end_is_refused(cursor: str) -> None:
    with pytest.raises(ArgumentInvalid):
        await expand(await service_with_result(), "ann", "res_1", cursor=cursor)
