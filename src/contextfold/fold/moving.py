"""Moving every session from one store to another: what a store gives and takes for it, and in which order it is done.

A session is taken in parts, each of them whole or not at all, so whoever was stopped goes on where the target stands.
After the last part both stores are read, and what they hold of the session is compared: only that makes it moved. The
archive may be hundreds of megabytes, so it goes page by page. Knows no file and no wire.

    copy what is missing → read both → the same?      each session in turn; one that is whole there is only compared

A session may have ended on one side alone, because it was idle for long enough: its archive and its summaries are then
all there is to move. Whatever else is different is refused, and that session left as it is on both sides.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from contextfold.common.canonical import encode
from contextfold.errors import MoveRefused, StoreInvalid, StoreUnavailable
from contextfold.fold.archive import Entry
from contextfold.fold.events import BranchFolded, Event, WorkFolded
from contextfold.fold.session import LogBroken, replay
from contextfold.fold.store import SessionKey, StaleRevision, Summary

PART_EVENTS: Final = 64
PAGE_CHARACTERS: Final = 1_000_000  # of texts, after which a page ends with the event it is at; one text may be longer
PAGE_ENTRIES: Final = 512
LOST_MOST: Final = 1_000  # as often may another mover be faster with a part of a session: it gets on each time
ROUNDS: Final = 8  # as often may a session go on at the source, or at the target, while it is moved; or any after that


@dataclass(frozen=True, slots=True)
class Held:
    """A session as a store holds it."""

    key: SessionKey
    session_id: str
    revision: int  # of one that has ended: with its last event, if the store knows it
    last_at: str
    ended_at: str | None  # None: it is live

    @property
    def is_live(self) -> bool:
        return self.ended_at is None


@dataclass(frozen=True, slots=True)
class Kept:
    """The receipt of an operation, which stores know by the hash of its id."""

    operation: str  # SHA-256 in hex
    fingerprint: str
    answer: str


@dataclass(frozen=True, slots=True)
class Whole:
    """All of a session but its archive, as it was at one moment. Events and receipts are those of a live one."""

    held: Held
    archived_to: int  # the last event whose entries are all in the archive; 0 if there is none
    events: Sequence[Event]
    receipts: Sequence[Kept]
    summaries: Sequence[Summary]


@dataclass(frozen=True, slots=True)
class Part:
    """What comes next of a session: taken whole, and only by a store that stands at `after`, or not at all."""

    held: Held  # the session as it will be at the end
    after: int  # the revision of a live one; of one that has ended the last event in the archive
    events: Sequence[Event] = ()
    receipts: Sequence[Kept] = ()
    entries: Sequence[Entry] = ()
    summaries: Sequence[Summary] = ()  # which replace those of the same branches
    retracted: Sequence[str] = ()  # branches whose summaries no longer hold


class MovingSource(Protocol):
    async def count(self) -> int:
        """How many sessions there are, live or ended."""

    def sessions(self) -> AsyncGenerator[Held, None]:
        """Every session of every owner, live or ended, in an order that stays."""

    async def look(self, key: SessionKey, session_id: str) -> Whole | None:
        """The session as it is now; None if there is none, or no longer."""

    def entries(self, key: SessionKey, session_id: str, after: int) -> AsyncGenerator[Sequence[Entry], None]:
        """Its archive after an event, in order, page by page; what comes of one event is never on two pages."""

    async def close(self) -> None:
        """Let go."""


class MovingTarget(MovingSource, Protocol):
    async def live(self, key: SessionKey) -> str | None:
        """The id of the live session of this key."""

    async def take(self, part: Part) -> None:
        """Keep a part; StaleRevision if the session does not stand where the part goes on, or cannot be there.

        The first part makes the session. A part of one that has ended ends it here too, if it is live.
        """


@dataclass(frozen=True, slots=True)
class Progress:
    total: int
    moved: int = 0
    already_there: int = 0
    entries: int = 0  # copied
    text_bytes: int = 0  # of those

    @property
    def done(self) -> int:
        return self.moved + self.already_there


async def move(
    source: MovingSource, target: MovingTarget, on_progress: Callable[[Progress], None] = lambda _: None
) -> Progress:
    """Everything, each session verified; MoveRefused where the target holds something else."""
    moving = _Move(source, target, on_progress, Progress(await source.count()))
    await moving.check_room()
    for _ in range(ROUNDS):
        if not await moving.what_is_new():
            return moving.progress
    raise StoreUnavailable("sessions of the source keep changing: stop the daemons that use it, and run this again")


@dataclass(slots=True)
class _Move:
    source: MovingSource
    target: MovingTarget
    on_progress: Callable[[Progress], None]
    progress: Progress
    verified: set[Held] = field(default_factory=set)  # as they were at the source
    counted: set[tuple[SessionKey, str]] = field(default_factory=set)

    async def check_room(self) -> None:
        """Before anything is changed: most of what can be refused is that the target is in use already."""
        async with aclosing(self.source.sessions()) as every:
            async for held in every:
                rival = await self.target.live(held.key) if held.is_live else None
                if rival not in (None, held.session_id):
                    _refuse_rival(held, rival, await self.target.look(held.key, held.session_id))

    async def what_is_new(self) -> bool:
        """At first everything, then what somebody has done at the source meanwhile; False if that is nothing."""
        found = False
        async with aclosing(self.source.sessions()) as every:
            async for held in every:
                if held not in self.verified:
                    found = True
                    await self._one(held)
        return found

    async def _one(self, listed: Held) -> None:
        """A session that is gone by now has nothing left to move."""
        self.verified.add(listed)
        copied = False
        rounds = lost = 0
        while rounds < ROUNDS and lost < LOST_MOST:
            here = await self.source.look(listed.key, listed.session_id)
            there = await self.target.look(listed.key, listed.session_id)
            if here is None:
                break
            _refuse_rival(here.held, await self.target.live(listed.key), there)
            if there is None or not _is_complete(here, there):
                is_copied = await self._copy(here, there)
                copied = is_copied or copied
                rounds, lost = (rounds + 1, lost) if is_copied else (rounds, lost + 1)
                continue
            different = await self._difference(here, there)
            if different is None:
                self.verified.add(here.held)
                break
            if await self._is_still(here, there):
                raise MoveRefused(f"{_told(listed)} is at the target too, but its {different} are not the source's")
            lost += 1
        else:
            raise StoreUnavailable(f"{_told(listed)} keeps changing: stop the daemons that use it, and run this again")
        self._count(listed, copied=copied)

    def _count(self, held: Held, *, copied: bool) -> None:
        """Each session once, as what it was at first."""
        if (held.key, held.session_id) not in self.counted:
            self.counted.add((held.key, held.session_id))
            told = self.progress
            counted = {"moved": told.moved + 1} if copied else {"already_there": told.already_there + 1}
            self._tell(replace(told, total=max(told.total, told.done + 1), **counted))

    async def _is_still(self, here: Whole, there: Whole) -> bool:
        where = (here.held.key, here.held.session_id)
        return (await self.source.look(*where), await self.target.look(*where)) == (here, there)

    async def _copy(self, here: Whole, there: Whole | None) -> bool:
        """What is missing; False if somebody else was at it, and it is to be looked at again."""
        try:
            if here.held.is_live and (there is None or there.held.is_live):
                await self._copy_live(here, there)
            else:
                await self._copy_ended(here, there)
        except StaleRevision:
            return False
        return True

    async def _copy_live(self, here: Whole, there: Whole | None) -> None:
        reached = there.held.revision if there else 0
        if there and list(there.events) != list(here.events[:reached]):
            raise MoveRefused(f"{_told(here.held)} is at the target too, with another history")
        plan = _Plan(here, there)
        async with aclosing(self.source.entries(here.held.key, here.held.session_id, reached)) as pages:
            async for page in pages:
                known = [entry for entry in page if entry.n <= here.held.revision]  # the rest came after we looked
                for part in plan.parts(known, known[-1].n if known else reached):
                    await self._take(part)
                if len(known) < len(page):
                    break
        for part in plan.parts([], here.held.revision):
            await self._take(part)

    async def _copy_ended(self, here: Whole, there: Whole | None) -> None:
        """What is ended on one side is copied as what has ended, though the other may still have more of it."""
        ended = there.held if there and not there.held.is_live else here.held
        if there and there.held.is_live and there.held.revision >= here.held.revision:
            raise MoveRefused(f"{_told(here.held)} has ended at the source, but went on at the target")
        after = there.archived_to if there else 0
        first = Part(ended, after, summaries=here.summaries, retracted=_retracted(here, there))
        async with aclosing(self.source.entries(here.held.key, here.held.session_id, after)) as pages:
            async for page in pages:
                await self._take(replace(first, entries=page))
                first = Part(ended, page[-1].n)
        if first.after == after:
            await self._take(first)

    async def _take(self, part: Part) -> None:
        await self.target.take(part)
        told = self.progress
        size = sum(len(entry.text.encode("utf-8", "surrogatepass")) for entry in part.entries)
        self._tell(replace(told, entries=told.entries + len(part.entries), text_bytes=told.text_bytes + size))

    def _tell(self, progress: Progress) -> None:
        self.progress = progress
        self.on_progress(progress)

    # ---- the same?

    async def _difference(self, here: Whole, there: Whole) -> str | None:
        """What is not the same in both stores, for a person; None if all of it is."""
        if here.held.is_live and there.held.is_live:
            if list(here.events) != list(there.events) or _replayed(here) != _replayed(there):
                return "events"
            if _by_operation(here.receipts) != _by_operation(there.receipts):
                return "receipts"
        if here.held.last_at != there.held.last_at:
            return "last moments"
        if _by_branch(here.summaries) != _by_branch(there.summaries):
            return "summaries"
        if await self._digest(self.source, here.held) != await self._digest(self.target, here.held):
            return "archive entries"
        return None

    async def _digest(self, store: MovingSource, held: Held) -> str:
        """Of the archive. In which order a store gives what one event left behind is its own business."""
        running = hashlib.sha256()
        async with aclosing(store.entries(held.key, held.session_id, 0)) as pages:
            async for page in pages:
                for line in sorted(map(_line, page)):
                    running.update(line)
                self.on_progress(self.progress)
        return running.hexdigest()


class _Plan:
    """Which part carries what, besides the entries.

    A summary goes with the event that made it, the last part brings what then is still different. Receipts are spread
    over the events: no store knows which belongs to which, and no part should be much larger than the others.
    """

    def __init__(self, here: Whole, there: Whole | None) -> None:
        self._here = here
        self._there = there
        self._reached = there.held.revision if there else 0
        known = {receipt.operation for receipt in there.receipts} if there else set()
        self._receipts = [receipt for receipt in here.receipts if receipt.operation not in known]
        self._summaries = _by_branch(here.summaries)

    def parts(self, entries: Sequence[Entry], to: int) -> Iterator[Part]:
        """Those that bring the session to this revision, with the entries up to there."""
        while self._reached < to:
            after, self._reached = self._reached, min(self._reached + PART_EVENTS, to)
            events = self._here.events[after : self._reached]
            is_last = self._reached == self._here.held.revision
            yield Part(
                self._here.held,
                after,
                events,
                self._some_receipts(len(events)),
                [entry for entry in entries if after < entry.n <= self._reached],
                self._some_summaries(events, is_last=is_last),
                _retracted(self._here, self._there) if is_last else (),
            )

    def _some_receipts(self, events: int) -> Sequence[Kept]:
        left = self._here.held.revision - self._reached + events
        share = -(-len(self._receipts) * events // left)
        given, self._receipts = self._receipts[:share], self._receipts[share:]
        return given

    def _some_summaries(self, events: Sequence[Event], *, is_last: bool) -> Sequence[Summary]:
        branches = (
            list(self._summaries)
            if is_last
            else [event.branch_id for event in events if isinstance(event, BranchFolded | WorkFolded)]
        )
        given = [self._summaries.pop(branch_id, None) for branch_id in branches]
        return [summary for summary in given if summary is not None]


def _is_complete(here: Whole, there: Whole) -> bool:
    """Whether nothing is missing at the target, as far as numbers tell."""
    if here.held.is_live and there.held.is_live:
        if there.held.revision > here.held.revision:
            raise MoveRefused(f"{_told(here.held)} went on at the target: it has been moved before")
        return there.held.revision == here.held.revision
    return (
        not there.held.is_live
        and there.archived_to >= here.archived_to
        and _by_branch(there.summaries).keys() == _by_branch(here.summaries).keys()
    )


def _refuse_rival(held: Held, rival: str | None, there: Whole | None) -> None:
    if held.is_live and there is None and rival not in (None, held.session_id):
        raise MoveRefused(
            f"the target has another live session, {rival}, in the place of {_told(held)}:"
            " move to a store without it, or wait until it has ended"
        )


def _retracted(here: Whole, there: Whole | None) -> Sequence[str]:
    return sorted(_by_branch(there.summaries).keys() - _by_branch(here.summaries).keys()) if there else ()


def _by_branch(summaries: Sequence[Summary]) -> dict[str, Summary]:
    return {summary.branch_id: summary for summary in summaries}


def _by_operation(receipts: Sequence[Kept]) -> Mapping[str, Kept]:
    return {receipt.operation: receipt for receipt in receipts}


def _replayed(whole: Whole) -> object:
    try:
        return replay(whole.events)
    except LogBroken as problem:
        raise StoreInvalid(f"the log of {_told(whole.held)} cannot be read: {problem}") from problem


def _line(entry: Entry) -> bytes:
    """An entry as bytes that sort by its event first."""
    told = (entry.at, entry.kind, entry.tokens, entry.type, entry.source, entry.failed, entry.child_id)
    text = hashlib.sha256(entry.text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{entry.n:012}".encode() + encode([entry.branch_id, *told, entry.undone_from, text]).encode()


def _told(held: Held) -> str:
    return f"session {held.session_id} of {held.key.owner}"
