"""Whatever makes a cache invalid is found by every resolve, whether or not the damaged part would be selected."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from contextfold import ContextError, open_cache
from tests.support.clauses import covers
from tests.support.machine import Call

# The budget of the query below holds one document, security.md; these are the others.
DEPLOYMENT = "documents/19835fc46fd4.json"
EMPTY = "documents/e3b0c44298fc.json"

Damage = Callable[[Path], object]


def edit(file: str, old: str, new: str) -> Damage:
    def damage(cache: Path) -> None:
        text = (cache / file).read_text()
        assert old in text
        (cache / file).write_text(text.replace(old, new))

    return damage


def write(file: str, text: str) -> Damage:
    return lambda cache: (cache / file).write_text(text)


def remove(file: str) -> Damage:
    return lambda cache: (cache / file).unlink()


def manifest_with(**changes: object) -> Damage:
    def damage(cache: Path) -> None:
        manifest = json.loads((cache / "manifest.json").read_text())
        manifest.update(changes)
        (cache / "manifest.json").write_text(json.dumps({k: v for k, v in manifest.items() if v is not None}))

    return damage


def entry_with(**changes: object) -> Damage:
    def damage(cache: Path) -> None:
        manifest = json.loads((cache / "manifest.json").read_text())
        manifest["documents"][0].update(changes)
        (cache / "manifest.json").write_text(json.dumps(manifest))

    return damage


def document_with(**changes: object) -> Damage:
    def damage(cache: Path) -> None:
        document = json.loads((cache / DEPLOYMENT).read_text())
        document.update(changes)
        (cache / DEPLOYMENT).write_text(json.dumps({k: v for k, v in document.items() if v is not None}))

    return damage


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


def by_link(file: str) -> Damage:
    def damage(cache: Path) -> None:
        (cache / file).rename(cache / "elsewhere")
        (cache / file).symlink_to(cache / "elsewhere")

    return damage


def by_folder(file: str) -> Damage:
    def damage(cache: Path) -> None:
        (cache / file).unlink()
        (cache / file).mkdir()

    return damage


def by_pipe(file: str) -> Damage:
    def damage(cache: Path) -> None:
        (cache / file).unlink()
        os.mkfifo(cache / file)

    return damage


def same_size_and_time(cache: Path) -> None:
    """Change one letter in place, and set the clock on the file back."""
    path = cache / DEPLOYMENT
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b"guide.", b"guide!"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def renamed_over(cache: Path) -> None:
    path = cache / DEPLOYMENT
    before = path.stat()
    (cache / "new").write_bytes(path.read_bytes().replace(b"guide.", b"guide!"))
    os.utime(cache / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    (cache / "new").rename(path)


def two_swapped(cache: Path) -> None:
    (cache / DEPLOYMENT).rename(cache / "x")
    (cache / EMPTY).rename(cache / DEPLOYMENT)
    (cache / "x").rename(cache / EMPTY)


def documents_behind_a_link(cache: Path) -> None:
    (cache / "documents").rename(cache.parent / "outside")
    (cache / "documents").symlink_to(cache.parent / "outside")


def file_outside(cache: Path) -> None:
    shutil.copy(cache / DEPLOYMENT, cache.parent / "outside.json")
    entry_with(file="../outside.json")(cache)
    edit("index.json", DEPLOYMENT, "../outside.json")(cache)
    (cache / DEPLOYMENT).unlink()


def file_behind_a_linked_folder(cache: Path) -> None:
    (cache.parent / "outside").mkdir()
    shutil.move(cache / DEPLOYMENT, cache.parent / "outside" / "d.json")
    (cache / "documents" / "sub").symlink_to(cache.parent / "outside")
    entry_with(file="documents/sub/d.json")(cache)
    edit("index.json", DEPLOYMENT, "documents/sub/d.json")(cache)


def stranger_in_a_subfolder(cache: Path) -> None:
    (cache / "documents" / "sub").mkdir()
    (cache / "documents" / "sub" / "x.json").write_text("{}")


FAULTS: dict[str, tuple[Damage, str]] = {
    # the file named in the fault, after what was done
    "manifest missing": (remove("manifest.json"), "manifest.json"),
    "manifest not JSON": (write("manifest.json", "nope"), "manifest.json"),
    "manifest empty": (write("manifest.json", ""), "manifest.json"),
    "manifest not UTF-8": (lambda cache: (cache / "manifest.json").write_bytes(b'{"\xff":1}'), "manifest.json"),
    "manifest a list": (write("manifest.json", "[]"), "manifest.json"),
    "manifest deeply nested": (write("manifest.json", "[" * 200_000), "manifest.json"),
    "manifest nested deeper than every Python reads": (manifest_with(extra=nested(130)), "manifest.json"),
    "manifest a link": (by_link("manifest.json"), "manifest.json"),
    "manifest a folder": (by_folder("manifest.json"), "manifest.json"),
    "manifest a pipe": (by_pipe("manifest.json"), "manifest.json"),
    "manifest with NaN": (edit("manifest.json", '"document_count": 3', '"document_count": NaN'), "manifest.json"),
    "manifest with half a surrogate pair": (
        edit("manifest.json", '"cache_version"', '"x": "\\ud800", "cache_version"'),
        "manifest.json",
    ),
    "manifest with a key twice": (
        edit("manifest.json", '"document_count": 3', '"document_count": 3, "document_count": 3'),
        "manifest.json",
    ),
    "no cache_version": (manifest_with(cache_version=None), "manifest.json"),
    "no documents": (manifest_with(documents=None), "manifest.json"),
    "documents no list": (manifest_with(documents={}), "manifest.json"),
    "an entry without version": (manifest_with(documents=[{"id": "a", "file": "b"}]), "manifest.json"),
    "an entry that is a string": (manifest_with(documents=["a"]), "manifest.json"),
    "build_config missing": (manifest_with(build_config=None), "manifest.json"),
    "build_config version": (manifest_with(build_config={"version": "2", "hash_algorithm": "sha256"}), "manifest.json"),
    "build_config algorithm": (manifest_with(build_config={"version": "1", "hash_algorithm": "md5"}), "manifest.json"),
    "count wrong": (manifest_with(document_count=2), "manifest.json"),
    "count a fraction": (manifest_with(document_count=3.0), "manifest.json"),
    "count true": (manifest_with(document_count=True), "manifest.json"),
    "count negative": (manifest_with(document_count=-3), "manifest.json"),
    "cache_version wrong": (manifest_with(cache_version="sha256:" + "0" * 64), "manifest.json"),
    "created_at missing": (manifest_with(created_at=None), "manifest.json"),
    "created_at a date": (manifest_with(created_at="2026-02-05"), "manifest.json"),
    "created_at without zone": (manifest_with(created_at="2026-02-05T10:30:00"), "manifest.json"),
    "created_at on 29 February of 2026": (manifest_with(created_at="2026-02-29T10:30:00Z"), "manifest.json"),
    "created_at at 24 o'clock": (manifest_with(created_at="2026-02-05T24:00:00Z"), "manifest.json"),
    "created_at in Arabic digits": (manifest_with(created_at="٢٠٢٦-02-05T10:30:00Z"), "manifest.json"),
    "entry id changed": (entry_with(id="x.md"), "manifest.json"),
    "entry version changed": (entry_with(version="sha256:" + "0" * 64), "manifest.json"),
    "file leaves by dots": (file_outside, "manifest.json"),
    "file leaves by an absolute path": (entry_with(file="/etc/hostname"), "manifest.json"),
    "file leaves by a link": (file_behind_a_linked_folder, "manifest.json"),
    "documents behind a link": (documents_behind_a_link, "documents"),
    "document missing": (remove(DEPLOYMENT), DEPLOYMENT),
    "document not JSON": (write(DEPLOYMENT, "nope"), DEPLOYMENT),
    "document cut short": (lambda cache: os.truncate(cache / DEPLOYMENT, 40), DEPLOYMENT),
    "document cut short in the middle of many quotes": (
        lambda cache: (cache / DEPLOYMENT).write_bytes(b"[" * 128 + b'"' + b'\\"' * 300_000),
        DEPLOYMENT,
    ),
    "document empty": (write(DEPLOYMENT, ""), DEPLOYMENT),
    "document a link": (by_link(DEPLOYMENT), DEPLOYMENT),
    "document a folder": (by_folder(DEPLOYMENT), DEPLOYMENT),
    "document a pipe": (by_pipe(DEPLOYMENT), DEPLOYMENT),
    "document a list": (write(DEPLOYMENT, "[]"), DEPLOYMENT),
    "document without source": (document_with(source=None), DEPLOYMENT),
    "document without metadata": (document_with(metadata=None), DEPLOYMENT),
    "document content a number": (document_with(content=1), DEPLOYMENT),
    "document metadata a fraction": (document_with(metadata={"n": 0.5}), DEPLOYMENT),
    "document metadata nested": (document_with(metadata={"n": {}}), DEPLOYMENT),
    "document metadata too large": (document_with(metadata={"n": 2**63}), DEPLOYMENT),
    "document metadata too small": (document_with(metadata={"n": -(2**63) - 1}), DEPLOYMENT),
    "document content twice": (edit(DEPLOYMENT, '"content":', '"content":"x","content":'), DEPLOYMENT),
    "document id changed": (document_with(id="x.md"), DEPLOYMENT),
    "document version changed": (document_with(version="sha256:" + "0" * 64), DEPLOYMENT),
    "document content changed": (document_with(content="Deployment deployment deployment guide!"), DEPLOYMENT),
    "document changed with its size and time kept": (same_size_and_time, DEPLOYMENT),
    "document replaced with its size and time kept": (renamed_over, DEPLOYMENT),
    "documents swapped": (two_swapped, DEPLOYMENT),
    "index missing": (remove("index.json"), "index.json"),
    "index not JSON": (write("index.json", "nope"), "index.json"),
    "index a list": (write("index.json", "[]"), "index.json"),
    "index of numbers": (write("index.json", '{"deployment.md": 1}'), "index.json"),
    "index a link": (by_link("index.json"), "index.json"),
    "index lacks an entry": (write("index.json", "{}"), "index.json"),
    "index has one more": (edit("index.json", "{", '{"x.md": "documents/x.json",'), "index.json"),
    "index names another file": (edit("index.json", DEPLOYMENT, EMPTY), "index.json"),
    "stranger": (write("documents/ffffffffffff.json", "{}"), "documents/ffffffffffff.json"),
    "stranger in a subfolder": (stranger_in_a_subfolder, "documents/sub/x.json"),
    "stranger that is a dangling link": (lambda cache: (cache / "documents/x").symlink_to("nowhere"), "documents/x"),
}


@covers(
    "resolve.md#packed-index",
    "resolve.md#invalid",
    "resolve.md#exit-codes",
    "resolve.md#inspect-verify",
    "resolve.md#speed",
    "seed-000#error-types",
    "seed-003#canonical-error-codes",
    "seed-003#boundary-cache-invalid-vs-io-error",
)
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "unpacked"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str, packed: bool, cache: Path, call: Call) -> None:
    damage, file = FAULTS[name]
    damage(cache)
    if not packed:
        shutil.rmtree(cache / "pack")
    ran = call("resolve", "--cache", cache, "--query", "security", "--budget", 7)
    assert (ran.code, ran.out) == (5, b"")
    assert ran.err.startswith("error: Cache exists but is invalid\nreason: ")
    ran = call("verify", "--cache", cache)
    assert (ran.code, ran.out) == (5, b"")
    assert f"reason: {file}: " in ran.err


def touch_all(cache: Path) -> None:
    for path in cache.rglob("*"):
        os.utime(path)


def copy_over(cache: Path) -> None:
    shutil.copytree(cache, cache.parent / "copy")
    shutil.rmtree(cache)
    (cache.parent / "copy").rename(cache)


HARMLESS: dict[str, Damage] = {
    "nothing": lambda cache: None,
    "an extra field nested as deep as we read": manifest_with(extra=nested(120)),
    "an extra integer of 5000 digits": edit(
        "manifest.json", '"document_count"', '"x": ' + "9" * 5000 + ', "document_count"'
    ),
    "file named with a stray slash": lambda cache: [
        entry_with(file=DEPLOYMENT.replace("/", "//./"))(cache),
        edit("index.json", DEPLOYMENT, DEPLOYMENT.replace("/", "//./"))(cache),
    ],
    "extra field in a document": edit(DEPLOYMENT, '"metadata":{}', '"metadata":{},"extra":[1,{"x":null}]'),
    "document with other spacing and escapes": edit(DEPLOYMENT, '"content":"D', ' "content" : "\\u0044'),
    "metadata of strings and integers": document_with(metadata={"a": "b", "n": -(2**63), "m": 2**63 - 1}),
    "source changed": document_with(source="anything"),
    "extra field in the manifest": manifest_with(extra={"a": 1.5}),
    "manifest in another order": lambda cache: manifest_with(
        documents=json.loads((cache / "manifest.json").read_text())["documents"][::-1]
    )(cache),
    "created_at with offset and fraction": manifest_with(created_at="2024-02-29t23:59:60.123456789+23:59"),
    "index reformatted": lambda cache: (cache / "index.json").write_text(
        json.dumps(json.loads((cache / "index.json").read_text()))
    ),
    "a file beside the manifest": write("notes.txt", "x"),
    "file named through dots that stay inside": lambda cache: [
        entry_with(file=f"documents/../{DEPLOYMENT}")(cache),
        edit("index.json", DEPLOYMENT, f"documents/../{DEPLOYMENT}")(cache),
    ],
    "touched": touch_all,
    "copied": copy_over,
}


@covers("resolve.md#layout", "resolve.md#cache-version", "resolve.md#packed-index", "resolve.md#invalid")
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "unpacked"])
@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_harmless_changes_no_byte(name: str, packed: bool, cache: Path, call: Call) -> None:
    question = ("resolve", "--cache", cache, "--query", "guide deployment", "--budget", 4000)
    before = call(*question)
    assert before.code == 0
    HARMLESS[name](cache)
    if not packed:
        shutil.rmtree(cache / "pack")
    after = call(*question)
    assert after == before
    assert call("verify", "--cache", cache).code == 0


@covers("resolve.md#inspect-verify")
def test_verify_lists_every_fault_at_once(cache: Path, call: Call) -> None:
    for name in ("count wrong", "document not JSON", "index has one more", "stranger"):
        FAULTS[name][0](cache)
    remove(EMPTY)(cache)
    ran = call("verify", "--cache", cache)
    assert ran.code == 5
    assert "5 faults" in ran.err.splitlines()[0]
    for file in ("manifest.json", DEPLOYMENT, EMPTY, "index.json", "documents/ffffffffffff.json"):
        assert f"reason: {file}: " in ran.err
    assert "context build" in ran.err.splitlines()[-1]


@covers("seed-000#determinism-in-errors", "seed-003#determinism-contract")
def test_an_error_says_the_same_each_time(cache: Path, call: Call) -> None:
    FAULTS["documents swapped"][0](cache)
    question = ("resolve", "--cache", cache, "--query", "q", "--budget", 1)
    assert call(*question) == call(*question)


@covers("resolve.md#read-only", "seed-000#recovery-policy", "seed-000#invariants")
def test_nothing_is_mended_or_rebuilt(cache: Path, call: Call) -> None:
    remove("index.json")(cache)
    for command in (("resolve", "--query", "q", "--budget", 1), ("inspect",), ("verify",)):
        call(command[0], "--cache", cache, *command[1:])
    assert not (cache / "index.json").exists()


def test_a_file_of_many_gigabytes_is_refused_before_it_is_read(cache: Path) -> None:
    """A sparse file costs nothing on a disk, and would cost all of the memory."""
    document = next((cache / "documents").iterdir())
    os.truncate(document, 8 << 30)
    with pytest.raises(ContextError):
        open_cache(cache).resolve("guide", 100)
