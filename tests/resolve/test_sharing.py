"""Packing a cache gives the same bytes on every machine, and a file with any other byte is refused."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import contextfold
from contextfold.common.canonical import Encodable, version_of
from contextfold.errors import BundleInvalid, CacheExists, CacheInvalid, StorageFailed
from contextfold.resolve.bundle import BUNDLE_MAGIC, BundleHead, last_line
from contextfold.resolve.document import Document
from contextfold.resolve.manifest import ManifestEntry, cache_version_of
from tests.support.machine import Call, context, times, write_files


def test_an_unpacked_cache_equals_the_packed_one(tmp_path: Path, call: Call) -> None:
    docs = write_files(tmp_path / "docs", {"A.md": "a\u2028\n", "b/c.html": "<h1>x", "e.md": ""})
    contextfold.build(docs, tmp_path / "one", exclude=["x/"], created_at="2026-01-02T03:04:05Z")
    contextfold.build(docs, tmp_path / "two", exclude=["x/"], created_at="2027-01-02T03:04:05Z")
    packed = contextfold.pack(tmp_path / "one", tmp_path / "one.ctxpack")
    assert contextfold.pack(tmp_path / "two", tmp_path / "two.ctxpack").sha256 == packed.sha256
    assert packed.sha256 == "sha256:" + hashlib.sha256((tmp_path / "one.ctxpack").read_bytes()).hexdigest()
    contextfold.unpack(tmp_path / "one.ctxpack", tmp_path / "back", created_at="2026-01-02T03:04:05Z")
    for name in (
        "manifest.json",
        "index.json",
        *(f"documents/{n}" for n in os.listdir(tmp_path / "one" / "documents")),
    ):
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    assert call("verify", "--cache", tmp_path / "back").code == 0
    assert contextfold.pack(tmp_path / "back", tmp_path / "again.ctxpack").sha256 == packed.sha256


def test_the_commands_choose_default_names_and_print_the_hash(tmp_path: Path) -> None:
    docs = write_files(tmp_path / "docs", {"a.md": "a"})
    assert context("build", docs).code == 0
    packed = context("pack", docs / ".context-cache", cwd=tmp_path)
    assert packed.code == 0
    digest, name = packed.out.decode().split()
    assert name == "docs.ctxpack"
    assert digest == "sha256:" + hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    assert context("pack", docs / ".context-cache", "-o", "-").out == (tmp_path / name).read_bytes()
    assert context("unpack", "docs.ctxpack", cwd=tmp_path).code == 0
    assert context("unpack", "docs.ctxpack", cwd=tmp_path).code == 6
    assert context("unpack", "docs.ctxpack", "--force", cwd=tmp_path).code == 0
    assert context("verify", "--cache", tmp_path / "docs.cache").code == 0


@given(data=st.data())
@settings(max_examples=times(30, 4000))
def test_an_altered_bundle_is_refused(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    work = tmp_path_factory.getbasetemp() / "altered"
    if not work.exists():
        write_files(work / "docs", {"a.md": "alpha", "b.md": "beta\n", "c.md": "gamma"})
        contextfold.build(work / "docs", work / "cache")
        contextfold.pack(work / "cache", work / "whole")
    raw = bytearray((work / "whole").read_bytes())
    offset = data.draw(st.integers(0, len(raw) - 1))
    match data.draw(st.sampled_from(["flip", "cut", "grow", "end", "swap"])):
        case "flip":
            raw[offset] ^= 1 << data.draw(st.integers(0, 7))
        case "cut":
            del raw[offset:]
        case "grow":
            raw[offset:offset] = bytes([data.draw(st.integers(0, 255))])
        case "end":
            raw += b"\n"
        case "swap":
            lines = bytes(raw).splitlines(keepends=True)
            lines[2], lines[3] = lines[3], lines[2]
            raw = bytearray(b"".join(lines))
    (work / "altered").write_bytes(raw)
    with pytest.raises(BundleInvalid):
        contextfold.unpack(work / "altered", work / "out")
    assert not (work / "out").exists()
    assert not [name for name in os.listdir(work) if "contextfold" in name]


def bundle_of(*documents: Document, options: Mapping[str, Encodable] | None = None) -> bytes:
    """A bundle of these documents with a correct hash, even if they are invalid."""
    entries = [ManifestEntry(document.id, document.version, "") for document in documents]
    body = BUNDLE_MAGIC + BundleHead(cache_version_of(entries), len(documents), options).to_line()
    body += b"".join(document.to_json() + b"\n" for document in documents)
    return body + last_line(hashlib.sha256(body))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("../a.md", "../a.md"),
        ("/etc/a.md", "/etc/a.md"),
        ("a/../../b.md", "a/../../b.md"),
        ("a//b.md", "a//b.md"),
        ("c:/a.md", "C:\\a.md"),
        ("a.md", "b.md"),
        ("a\0.md", "a\0.md"),
        ("", ""),
    ],
)
def test_a_bundle_with_an_invalid_path_is_refused(name: str, source: str, tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(bundle_of(Document(name, version_of(b"x"), source, b"x")))
    with pytest.raises(BundleInvalid):
        contextfold.unpack(tmp_path / "b", tmp_path / "out")
    assert os.listdir(tmp_path) == ["b"]


@pytest.mark.parametrize(
    "options",
    [
        {"kinds": "evil"},
        {"kinds": "text", "include": ["../../**"], "exclude": 5, "gitignore": True},
        {"kinds": "text", "include": "*.md", "exclude": [], "gitignore": True},
    ],
)
def test_a_bundle_with_options_that_no_build_has_is_refused(options: dict[str, Encodable], tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(bundle_of(Document.from_source("a.md", b"x"), options=options))
    with pytest.raises(BundleInvalid, match="options"):
        contextfold.unpack(tmp_path / "b", tmp_path / "out")
    assert os.listdir(tmp_path) == ["b"]


def test_a_valid_bundle_is_unpacked(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(bundle_of(Document.from_source("Sub/A.md", b"x")))
    assert contextfold.unpack(tmp_path / "b", tmp_path / "out").document_count == 1
    (tmp_path / "b").write_bytes(bundle_of())
    assert contextfold.unpack(tmp_path / "b", tmp_path / "none").document_count == 0
    assert contextfold.pack(tmp_path / "none", tmp_path / "b").document_count == 0


def test_a_damaged_cache_is_not_packed(cache: Path, tmp_path: Path) -> None:
    document = next((cache / "documents").iterdir())
    document.write_text(document.read_text().replace("id", "ID", 1))
    with pytest.raises(CacheInvalid):
        contextfold.pack(cache, tmp_path / "x")
    assert not [name for name in os.listdir(tmp_path) if name.startswith("x")]


def test_pack_overwrites_only_bundles(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("precious")
    with pytest.raises(CacheExists):
        contextfold.pack(cache, tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == "precious"
    assert contextfold.pack(cache, tmp_path / "x") == contextfold.pack(cache, tmp_path / "x")
    with pytest.raises(StorageFailed):
        contextfold.unpack(tmp_path, tmp_path / "out")


def test_each_line_of_a_bundle_is_json(cache: Path, tmp_path: Path) -> None:
    contextfold.pack(cache, tmp_path / "x")
    first, head, *documents, last = (tmp_path / "x").read_text().splitlines()
    assert first == "contextfold bundle 1"
    assert json.loads(head)["document_count"] == len(documents) == 3
    assert [json.loads(line)["id"] for line in documents] == ["deployment.md", "notes/empty.md", "security.md"]
    assert json.loads(last).keys() == {"sha256"}
