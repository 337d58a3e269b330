"""Compiling a folder of documents into a cache, all or nothing. Orders the pure parts and the disk; knows no format."""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable, Iterator

from contextfold.canonical import HASH_PREFIX
from contextfold.errors import StorageFailed
from contextfold.record import Record
from contextfold.resolve import pack as packs
from contextfold.resolve.document import Document
from contextfold.resolve.files import fingerprints, make_durable, shown, storage_failed, write_new
from contextfold.resolve.manifest import (
    DOCUMENTS_FOLDER,
    INDEX_FILE,
    MANIFEST_FILE,
    Entry,
    FileNames,
    Manifest,
    make_manifest,
)
from contextfold.resolve.relevance.index_head import HEAD_FILE, RELEVANCE_FILES
from contextfold.resolve.relevance.index_writer import IndexWriter
from contextfold.resolve.replace import Staging
from contextfold.resolve.sources import Source, check_unchanged, read_source, survey
from contextfold.text import count_words
from contextfold.tokens import tokens_of

CLOCK_TICK_S = 0.002
CLOCK_TICKS = 1500  # three seconds: the coarsest file systems count in two
NEVER_NS = -(2**63)  # older than this is nothing
TIMESTAMPS_TELL = os.name == "posix"  # elsewhere ctime is the time of creation, which no change moves

Progress = Callable[[int, int], None]


class BuildReport(Record):
    cache: str
    cache_version: str
    document_count: int
    content_bytes: int


def build(sources: bytes, cache: bytes, *, force: bool, created_at: str, progress: Progress) -> BuildReport:
    """Compile `sources` into `cache`; on any failure what was at `cache` is still there, and nothing else is."""
    if not os.path.isdir(sources):
        raise StorageFailed(f"{shown(sources)} is not a folder; --sources takes the folder that holds your .md files")
    if _is_inside(sources, cache):
        raise StorageFailed(
            f"{shown(cache)} holds the sources {shown(sources)}, which replacing it would delete; choose another path"
        )
    with Staging(cache, force=force) as staging:
        found = survey(sources)
        work = _Build(staging.path)
        try:
            work.write_documents(found, progress)
        finally:
            work.close()
        manifest = work.write_manifest(created_at)
        work.write_pack(manifest)
        work.make_durable()
        check_unchanged(sources, found)
        staging.commit()
        return BuildReport(shown(cache), manifest.cache_version, manifest.document_count, work.content_bytes)


def _is_inside(path: bytes, folder: bytes) -> bool:
    real_path, real_folder = os.path.realpath(path), os.path.realpath(folder)
    return os.path.commonpath([real_path, real_folder]) == real_folder


class _Build:
    """The new cache while it grows in the staging folder."""

    def __init__(self, folder: bytes) -> None:
        self._prefix = folder + b"/"
        self._entries: list[Entry] = []
        self._postings = packs.PostingsBuilder()
        self._tokens: array[int] = array("Q")
        self._total_words: array[int] = array("Q")
        self.content_bytes = 0
        for name in (DOCUMENTS_FOLDER, packs.PACK_FOLDER):
            try:
                os.mkdir(self._path(name))
            except OSError as problem:
                raise storage_failed("cannot make", self._path(name), problem) from problem
        self._relevance = IndexWriter(self._prefix)

    def _path(self, file: str) -> bytes:
        return self._prefix + file.encode()

    def write_documents(self, found: list[Source], progress: Progress) -> None:
        postings_path = self._path(packs.POSTINGS_FILE)
        names = FileNames()
        try:
            with open(postings_path, "xb") as postings:
                for number, source in enumerate(found):
                    progress(number, len(found))
                    document = Document.from_source(source.source, read_source(source))
                    entry = Entry(document.id, document.version, names.next_for(document.version))
                    write_new(self._path(entry.file), document.to_json())
                    postings.writelines(self._note(entry, document.content))
                    self._relevance.add(document)
                postings.writelines(self._postings.finish())
            self._relevance.finish()
        except OSError as problem:
            raise storage_failed("cannot write", postings_path, problem) from problem
        progress(len(found), len(found))

    def _note(self, entry: Entry, content: bytes) -> Iterator[bytes]:
        """Keep what the pack will say of a document; gives the postings that are ready to be written."""
        counts = count_words(content)
        self._entries.append(entry)
        self._tokens.append(tokens_of(len(content)))
        self._total_words.append(sum(counts.values()))
        self.content_bytes += len(content)
        return self._postings.add(counts)

    def close(self) -> None:
        self._relevance.abandon()

    def write_manifest(self, created_at: str) -> Manifest:
        manifest = make_manifest(self._entries, created_at)
        write_new(self._path(MANIFEST_FILE), manifest.to_json())
        write_new(self._path(INDEX_FILE), manifest.index_json())
        return manifest

    def write_pack(self, manifest: Manifest) -> None:
        """Last, because it records what all other files look like when they are done."""
        files = [entry.file.encode() for entry in manifest.entries]
        derived = [file.encode() for file in RELEVANCE_FILES]
        recorded_at_ns = self._clock_after(fingerprints(self._prefix, [*packs.FRAME, *derived, *files]))
        settled = packs.older_than(recorded_at_ns, fingerprints(self._prefix, [*packs.FRAME, *files]))
        frame_length = len(packs.FRAME) * packs.FINGERPRINT_FIELDS
        pack = packs.Pack(
            frame=settled[:frame_length],
            fingerprints=settled[frame_length:],
            tokens=self._tokens,
            total_words=self._total_words,
            files=files,
            ids=[entry.id.encode() for entry in manifest.entries],
            versions=b"".join(bytes.fromhex(entry.version.removeprefix(HASH_PREFIX)) for entry in manifest.entries),
            segments=self._postings.segments,
            blocks=self._postings.blocks,
            first_terms=self._postings.first_terms,
        )
        write_new(self._path(packs.TABLE_FILE), pack.to_bytes())
        self._relevance.write_head(manifest.cache_version, recorded_at_ns)

    def make_durable(self) -> None:
        files = [entry.file for entry in self._entries]
        files += [packs.POSTINGS_FILE, packs.TABLE_FILE, *RELEVANCE_FILES, HEAD_FILE, MANIFEST_FILE, INDEX_FILE]
        make_durable(self._prefix, [*files, packs.PACK_FOLDER, DOCUMENTS_FOLDER])

    def _clock_after(self, seen: array[int]) -> int:
        """A time of the file system's own clock, later than all timestamps seen if waiting for its next tick can do it.

        A file that changes after this moment gets a timestamp that differs from the one recorded for it.
        """
        newest = max(seen[1::4] + seen[2::4], default=0)
        probe = self._path(packs.CLOCK_FILE)
        try:
            with open(probe, "xb"):
                pass
            for _ in range(CLOCK_TICKS):
                os.utime(probe)
                now_ns = os.lstat(probe).st_mtime_ns
                if now_ns > newest:
                    break
                time.sleep(CLOCK_TICK_S)
            tells = TIMESTAMPS_TELL and _ctime_stays(probe)
            os.unlink(probe)
        except OSError as problem:
            raise storage_failed("cannot write", probe, problem) from problem
        return now_ns if tells else NEVER_NS


def _ctime_stays(probe: bytes) -> bool:
    """Whether ctime is the system's own record of a change, not a copy of what a program may set."""
    before_ns = os.lstat(probe).st_ctime_ns
    os.utime(probe, ns=(0, 0))
    return os.lstat(probe).st_ctime_ns >= before_ns
