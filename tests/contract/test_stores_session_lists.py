"""How every store lists the sessions of an owner, finds one by its id, and reads the trajectory of a main thread."""

from __future__ import annotations

import asyncio

from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.store import ArchivedThread, Store
from tests.contract.sessions import begin, commit_of, key_of

KEY = key_of()


def time_at(number: int) -> str:
    return f"2026-01-01T12:{number:02}:00Z"


async def _ids(
    store: Store, owner: str = "local", *, after: tuple[str, str] | None = None, limit: int = 10
) -> list[str]:
    return [listed.session_id for listed in await store.sessions(owner, after=after, limit=limit)]


async def _begin(store: Store, number: int, at: int, owner: str = "local") -> None:
    key = key_of(f"p{number}", owner=owner)
    await store.commit(commit_of(key, session_id=f"sess_{number:02}", at=time_at(at)))


async def test_sessions_are_listed_by_their_latest_activity(store: Store) -> None:
    for number, at in enumerate((3, 1, 2)):
        await _begin(store, number, at)
    assert await _ids(store) == ["sess_00", "sess_02", "sess_01"]
    await store.commit(commit_of(key_of("p1"), 1, session_id="sess_01", at=time_at(9)))
    listed = (await store.sessions("local", limit=1))[0]
    assert (listed.key, listed.session_id, listed.last_at) == (key_of("p1"), "sess_01", time_at(9))


async def test_pages_list_each_session_once_even_with_equal_times(store: Store) -> None:
    for number in range(23):
        await _begin(store, number, number // 8)
    all_ids = await _ids(store, limit=100)
    assert len(all_ids) == 23
    paged: list[str] = []
    after = None
    while page := await store.sessions("local", after=after, limit=5):
        paged += [listed.session_id for listed in page]
        after = (page[-1].last_at, page[-1].session_id)
    assert paged == all_ids
    assert await _ids(store, limit=0) == []


async def test_owners_list_and_find_only_their_own_sessions(store: Store) -> None:
    await _begin(store, 1, 1, owner="alice")
    await _begin(store, 2, 2, owner="bob")
    assert (await _ids(store, "alice"), await _ids(store, "bob"), await _ids(store, "eve")) == (
        ["sess_01"],
        ["sess_02"],
        [],
    )
    assert await store.find("alice", "sess_01") == key_of("p1", owner="alice")
    assert await store.find("bob", "sess_01") is None
    assert await store.find("alice", "sess_none") is None
    assert [await store.count(owner) for owner in ("alice", "bob", "eve", None)] == [1, 1, 0, 2]


async def test_an_ended_session_is_neither_listed_nor_found(store: Store) -> None:
    await _begin(store, 1, 1)
    await _begin(store, 2, 5)
    assert await store.expire(time_at(3), time_at(6)) == 1
    assert await _ids(store) == ["sess_02"]
    assert await store.find("local", "sess_01") is None
    assert await store.count("local") == 1


async def test_the_trajectory_of_a_main_thread_belongs_to_one_session(store: Store) -> None:
    other = key_of(name="other")
    await begin(store, KEY)
    await store.commit(commit_of(other, session_id="sess_2"))
    for key, session_id in ((KEY, "sess_1"), (other, "sess_2")):
        entries = [
            ArchiveEntry(None, 2, time_at(1), "operation", f"of {session_id}", 3, "tool", "hook"),
            ArchiveEntry("br_1", 2, time_at(1), "operation", "elsewhere"),
        ]
        await store.commit(commit_of(key, 1, session_id=session_id, entries=entries))
        rollback = ArchiveEntry(None, 3, time_at(2), "rollback", "", undone_from=1)
        await store.commit(commit_of(key, 2, session_id=session_id, entries=[rollback]))
    trajectory = await store.trajectory(ArchivedThread("local", "p1", None, "sess_1"), limit=10)
    assert trajectory
    assert [(entry.text, entry.kind) for entry in trajectory.entries] == [
        ("of sess_1", "operation"),
        ("", "rollback"),
    ]
    assert list(map(tuple, trajectory.rollbacks)) == [(1, 3)]
    later = await store.trajectory(ArchivedThread("local", "p1", None, "sess_1"), after_n=2, limit=10)
    assert later
    assert [entry.n for entry in later.entries] == [3]
    for owner, project, session_id in (
        ("eve", "p1", "sess_1"),
        ("local", "p2", "sess_1"),
        ("local", "p1", "sess_9"),
    ):
        assert await store.trajectory(ArchivedThread(owner, project, None, session_id), limit=10) is None


async def test_lists_stay_ordered_during_concurrent_commits(store: Store) -> None:
    async def work(number: int) -> None:
        await _begin(store, number, 1)
        for revision in range(1, 10):
            commit = commit_of(key_of(f"p{number}"), revision, session_id=f"sess_{number:02}", at=time_at(revision))
            await store.commit(commit)

    async def watch() -> None:
        for _ in range(30):
            listed = await store.sessions("local", limit=100)
            assert [item.last_at for item in listed] == sorted((item.last_at for item in listed), reverse=True)

    await asyncio.gather(*(work(number) for number in range(6)), watch())
    assert len(await _ids(store)) == 6
