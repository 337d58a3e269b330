"""Finds the transcripts that hosts keep, and reads their lines. Only reads.

Transcripts are another program's files: they may be half written, broken or of a version that nobody here has seen.
What cannot be read is counted and left out (`Skipped`), and never ends the audit.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from contextfold.errors import StorageFailed

# A longer line is skipped. It bounds the memory of a parsed line.
LINE_MAX_BYTES = 64 << 20
FILES_MAX = 200_000
# A time after this one, the end of the year 9998, is no time.
TIME_MAX_S = 253_370_764_800.0

CLAUDE_CODE, CODEX = "Claude Code", "Codex"
# Codex names its transcripts by time and id. An id has so many characters.
THREAD_ID_CHARS = 36

Line = Mapping[str, Any]
Progress = Callable[[int], None]


class Transcript(NamedTuple):
    host: str
    path: Path
    size: int
    modified: float

    @property
    def age(self) -> tuple[str, float]:
        """Sorts the originals before their copies. The name of one of Codex begins with the time when it was begun."""
        return self.path.name if self.path.name.startswith("rollout-") else "", self.modified


@dataclass(slots=True)
class Skipped:
    """What the audit could not use, by reason. A request without a time counts as one without usage."""

    broken_lines: int = 0
    long_lines: int = 0
    # Files and folders.
    unreadable_files: int = 0
    requests_without_usage: int = 0
    requests_of_unknown_models: int = 0
    # Requests in which a host had its history summarised: Claude Code does not record their usage.
    compactions: int = 0
    transcripts_without_requests: int = 0


def find_transcripts(home: Path, environment: Mapping[str, str], skipped: Skipped) -> list[Transcript]:
    """All transcripts of this user, the oldest first."""
    claude = environment.get("CLAUDE_CONFIG_DIR")
    folders = [(CLAUDE_CODE, Path(folder.strip()), "projects") for folder in (claude.split(",") if claude else ())]
    if not claude:
        folders += [(CLAUDE_CODE, home / ".claude", "projects"), (CLAUDE_CODE, home / ".config/claude", "projects")]
    codex = Path(environment.get("CODEX_HOME") or home / ".codex")
    folders += [(CODEX, codex, "sessions"), (CODEX, codex, "archived_sessions")]
    found = [each for host, folder, name in folders for each in _list_below(host, folder / name, skipped)]
    return sorted(found, key=lambda transcript: transcript.age)


def list_given(paths: Iterable[Path], skipped: Skipped) -> list[Transcript]:
    """The transcripts that a user named, or those in folders that a user named. Their first line tells the host."""
    found: list[Transcript] = []
    for path in paths:
        given = _list_below("", path, skipped) if path.is_dir() else [_transcript_at(path)]
        found += [transcript._replace(host=_host_of(transcript.path)) for transcript in given]
    return sorted(found, key=lambda transcript: transcript.age)


def _list_below(host: str, folder: Path, skipped: Skipped) -> Iterator[Transcript]:
    """The transcripts below a folder. Links to folders are not followed, so the walk ends."""

    def count_unreadable(problem: OSError) -> None:
        # A host that was never used has no folder.
        skipped.unreadable_files += not isinstance(problem, FileNotFoundError)

    listed = 0
    for parent, _, names in os.walk(folder, onerror=count_unreadable):
        for name in names:
            path = Path(parent, name)
            # Codex can compress old transcripts.
            skipped.unreadable_files += name.endswith(".jsonl.zst")
            if not name.endswith(".jsonl"):
                continue
            listed += 1
            if listed > FILES_MAX:
                raise StorageFailed(f"more than {FILES_MAX:,} transcripts are below {folder}; name a part of them")
            try:
                status = path.stat()
            except OSError:
                skipped.unreadable_files += 1
                continue
            if stat.S_ISREG(status.st_mode):
                yield Transcript(host, path, status.st_size, status.st_mtime)


def _transcript_at(path: Path) -> Transcript:
    try:
        status = path.stat()
    except OSError as problem:
        raise StorageFailed(f"cannot read {path}: {problem.strerror}") from None
    # A pipe or a device may never end.
    if not stat.S_ISREG(status.st_mode):
        raise StorageFailed(f"cannot read {path}: it is neither a file nor a folder")
    return Transcript("", path, status.st_size, status.st_mtime)


def _host_of(path: Path) -> str:
    """Codex begins each line with a type and a payload; everything else is read as Claude Code's."""
    first = next(read_lines(path, Skipped()), {})
    return CODEX if isinstance(first.get("payload"), dict) else CLAUDE_CODE


def _no_progress(_position: int) -> None:
    pass


def read_lines(path: Path, skipped: Skipped, progress: Progress = _no_progress) -> Iterator[Line]:
    """The objects of a transcript, one for each line that has one. `progress` takes the bytes that are read."""
    is_rest = False
    try:
        with path.open("rb") as file:
            while line := file.readline(LINE_MAX_BYTES):
                progress(file.tell())
                is_whole = line.endswith(b"\n") or len(line) < LINE_MAX_BYTES
                if is_rest or not is_whole:
                    skipped.long_lines += is_whole
                    is_rest = not is_whole
                    continue
                value = _parse_line(line)
                if value is not None:
                    yield value
                elif line.strip():
                    skipped.broken_lines += 1
            skipped.long_lines += is_rest
    except OSError:
        skipped.unreadable_files += 1


def read_forked_lines(path: Path, skipped: Skipped, progress: Progress, others: Mapping[str, Path]) -> Iterator[Line]:
    """The objects of a transcript. A fork of Codex begins with what it took from its parent, which is in another file.

    `others` has the files of transcripts by the end of their names, which is Codex's id of a conversation.
    """
    lines = read_lines(path, skipped, progress)
    if (first := next(lines, None)) is None:
        return
    yield first
    base = object_in(object_in(first, "payload"), "history_base")
    if (parent := others.get(text_in(base, "thread_id"))) and parent != path:
        rest = {name: each for name, each in others.items() if each != path}
        end = count_in(base, "end_ordinal_exclusive")
        inherited = read_forked_lines(parent, Skipped(), _no_progress, rest)
        yield from (line for line in inherited if count_in(line, "ordinal") < end)
    yield from lines


def _parse_line(line: bytes) -> Line | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


# ---- members of another program's objects


def object_in(members: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = members.get(name)
    return value if isinstance(value, dict) else {}


def text_in(members: Mapping[str, Any], name: str) -> str:
    value = members.get(name)
    return value if isinstance(value, str) else ""


def count_in(members: Mapping[str, Any], name: str) -> int:
    value = members.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40 else 0


def time_in(members: Mapping[str, Any]) -> float | None:
    """The line's `timestamp`, in seconds since 1970; None if it has none."""
    try:
        at = datetime.fromisoformat(text_in(members, "timestamp")).timestamp()
    except (ValueError, OverflowError):
        return None
    return at if 0 < at < TIME_MAX_S else None
