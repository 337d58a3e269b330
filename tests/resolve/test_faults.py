"""Every resolve finds every fault of a cache, even in a document that would not be selected."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from contextfold import open_cache
from contextfold.errors import CacheInvalid
from contextfold.resolve.cache import CacheFolder
from tests.support.machine import Call

# The budget of the query below is enough for one document, security.md. These are the others.
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


def change_json(file: str, **changes: object) -> Damage:
    """Changes members of a file. A member that becomes None is removed."""

    def damage(cache: Path) -> None:
        value = json.loads((cache / file).read_text()) | changes
        (cache / file).write_text(json.dumps({name: member for name, member in value.items() if member is not None}))

    return damage


change_manifest = partial(change_json, "manifest.json")
change_document = partial(change_json, DEPLOYMENT)


def change_entry(**changes: object) -> Damage:
    def damage(cache: Path) -> None:
        first, *others = json.loads((cache / "manifest.json").read_text())["documents"]
        change_manifest(documents=[first | changes, *others])(cache)

    return damage


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


def replace_by_link(file: str) -> Damage:
    def damage(cache: Path) -> None:
        (cache / file).rename(cache / "elsewhere")
        (cache / file).symlink_to(cache / "elsewhere")

    return damage


def replace_by(file: str, make: Callable[[Path], object]) -> Damage:
    def damage(cache: Path) -> None:
        (cache / file).unlink()
        make(cache / file)

    return damage


def change_keeping_size_and_time(cache: Path) -> None:
    """Changes one letter of the file and sets its old timestamp again."""
    path = cache / DEPLOYMENT
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b"guide.", b"guide!"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace_keeping_size_and_time(cache: Path) -> None:
    path = cache / DEPLOYMENT
    before = path.stat()
    (cache / "new").write_bytes(path.read_bytes().replace(b"guide.", b"guide!"))
    os.utime(cache / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    (cache / "new").rename(path)


def swap_documents(cache: Path) -> None:
    (cache / DEPLOYMENT).rename(cache / "x")
    (cache / EMPTY).rename(cache / DEPLOYMENT)
    (cache / "x").rename(cache / EMPTY)


def move_documents_behind_link(cache: Path) -> None:
    (cache / "documents").rename(cache.parent / "outside")
    (cache / "documents").symlink_to(cache.parent / "outside")


def move_document_outside(cache: Path) -> None:
    shutil.copy(cache / DEPLOYMENT, cache.parent / "outside.json")
    change_entry(file="../outside.json")(cache)
    edit("index.json", DEPLOYMENT, "../outside.json")(cache)
    (cache / DEPLOYMENT).unlink()


def move_document_behind_linked_folder(cache: Path) -> None:
    (cache.parent / "outside").mkdir()
    shutil.move(cache / DEPLOYMENT, cache.parent / "outside" / "d.json")
    (cache / "documents" / "sub").symlink_to(cache.parent / "outside")
    change_entry(file="documents/sub/d.json")(cache)
    edit("index.json", DEPLOYMENT, "documents/sub/d.json")(cache)


def add_file_in_subfolder(cache: Path) -> None:
    (cache / "documents" / "sub").mkdir()
    (cache / "documents" / "sub" / "x.json").write_text("{}")


FAULTS: dict[str, tuple[Damage, str]] = {
    # description: (damage, the file that the error names)
    "manifest missing": (remove("manifest.json"), "manifest.json"),
    "manifest not JSON": (write("manifest.json", "nope"), "manifest.json"),
    "manifest empty": (write("manifest.json", ""), "manifest.json"),
    "manifest not UTF-8": (lambda cache: (cache / "manifest.json").write_bytes(b'{"\xff":1}'), "manifest.json"),
    "manifest a list": (write("manifest.json", "[]"), "manifest.json"),
    "manifest deeply nested": (write("manifest.json", "[" * 200_000), "manifest.json"),
    "manifest nested deeper than every Python reads": (change_manifest(extra=nested(130)), "manifest.json"),
    "manifest a link": (replace_by_link("manifest.json"), "manifest.json"),
    "manifest a folder": (replace_by("manifest.json", Path.mkdir), "manifest.json"),
    "manifest a pipe": (replace_by("manifest.json", os.mkfifo), "manifest.json"),
    "manifest with NaN": (edit("manifest.json", '"document_count": 3', '"document_count": NaN'), "manifest.json"),
    "manifest with half a surrogate pair": (
        edit("manifest.json", '"cache_version"', '"x": "\\ud800", "cache_version"'),
        "manifest.json",
    ),
    "manifest with a key twice": (
        edit("manifest.json", '"document_count": 3', '"document_count": 3, "document_count": 3'),
        "manifest.json",
    ),
    "no cache_version": (change_manifest(cache_version=None), "manifest.json"),
    "no documents": (change_manifest(documents=None), "manifest.json"),
    "documents no list": (change_manifest(documents={}), "manifest.json"),
    "an entry without version": (change_manifest(documents=[{"id": "a", "file": "b"}]), "manifest.json"),
    "an entry that is a string": (change_manifest(documents=["a"]), "manifest.json"),
    "build_config missing": (change_manifest(build_config=None), "manifest.json"),
    "build_config version": (
        change_manifest(build_config={"version": "2", "hash_algorithm": "sha256"}),
        "manifest.json",
    ),
    "build_config algorithm": (
        change_manifest(build_config={"version": "1", "hash_algorithm": "md5"}),
        "manifest.json",
    ),
    "count wrong": (change_manifest(document_count=2), "manifest.json"),
    "count a fraction": (change_manifest(document_count=3.0), "manifest.json"),
    "count true": (change_manifest(document_count=True), "manifest.json"),
    "count negative": (change_manifest(document_count=-3), "manifest.json"),
    "cache_version wrong": (change_manifest(cache_version="sha256:" + "0" * 64), "manifest.json"),
    "created_at missing": (change_manifest(created_at=None), "manifest.json"),
    "created_at a date": (change_manifest(created_at="2026-02-05"), "manifest.json"),
    "created_at without zone": (change_manifest(created_at="2026-02-05T10:30:00"), "manifest.json"),
    "created_at on 29 February of 2026": (change_manifest(created_at="2026-02-29T10:30:00Z"), "manifest.json"),
    "created_at at 24 o'clock": (change_manifest(created_at="2026-02-05T24:00:00Z"), "manifest.json"),
    "created_at in Arabic digits": (change_manifest(created_at="٢٠٢٦-02-05T10:30:00Z"), "manifest.json"),
    "entry id changed": (change_entry(id="x.md"), "manifest.json"),
    "entry version changed": (change_entry(version="sha256:" + "0" * 64), "manifest.json"),
    "file leaves by dots": (move_document_outside, "manifest.json"),
    "file leaves by an absolute path": (change_entry(file="/etc/hostname"), "manifest.json"),
    "file leaves by a link": (move_document_behind_linked_folder, "manifest.json"),
    "documents behind a link": (move_documents_behind_link, "documents"),
    "document missing": (remove(DEPLOYMENT), DEPLOYMENT),
    "document not JSON": (write(DEPLOYMENT, "nope"), DEPLOYMENT),
    "document cut short": (lambda cache: os.truncate(cache / DEPLOYMENT, 40), DEPLOYMENT),
    "document cut short in the middle of many quotes": (
        lambda cache: (cache / DEPLOYMENT).write_bytes(b"[" * 128 + b'"' + b'\\"' * 300_000),
        DEPLOYMENT,
    ),
    "document empty": (write(DEPLOYMENT, ""), DEPLOYMENT),
    "document a link": (replace_by_link(DEPLOYMENT), DEPLOYMENT),
    "document a folder": (replace_by(DEPLOYMENT, Path.mkdir), DEPLOYMENT),
    "document a pipe": (replace_by(DEPLOYMENT, os.mkfifo), DEPLOYMENT),
    "document a list": (write(DEPLOYMENT, "[]"), DEPLOYMENT),
    "document without source": (change_document(source=None), DEPLOYMENT),
    "document without metadata": (change_document(metadata=None), DEPLOYMENT),
    "document content a number": (change_document(content=1), DEPLOYMENT),
    "document metadata a fraction": (change_document(metadata={"n": 0.5}), DEPLOYMENT),
    "document metadata nested": (change_document(metadata={"n": {}}), DEPLOYMENT),
    "document metadata too large": (change_document(metadata={"n": 2**63}), DEPLOYMENT),
    "document metadata too small": (change_document(metadata={"n": -(2**63) - 1}), DEPLOYMENT),
    "document content twice": (edit(DEPLOYMENT, '"content":', '"content":"x","content":'), DEPLOYMENT),
    "document id changed": (change_document(id="x.md"), DEPLOYMENT),
    "document version changed": (change_document(version="sha256:" + "0" * 64), DEPLOYMENT),
    "document content changed": (change_document(content="Deployment deployment deployment guide!"), DEPLOYMENT),
    "document changed with its size and time kept": (change_keeping_size_and_time, DEPLOYMENT),
    "document replaced with its size and time kept": (replace_keeping_size_and_time, DEPLOYMENT),
    "documents swapped": (swap_documents, DEPLOYMENT),
    "index missing": (remove("index.json"), "index.json"),
    "index not JSON": (write("index.json", "nope"), "index.json"),
    "index a list": (write("index.json", "[]"), "index.json"),
    "index of numbers": (write("index.json", '{"deployment.md": 1}'), "index.json"),
    "index a link": (replace_by_link("index.json"), "index.json"),
    "index lacks an entry": (write("index.json", "{}"), "index.json"),
    "index has one more": (edit("index.json", "{", '{"x.md": "documents/x.json",'), "index.json"),
    "index names another file": (edit("index.json", DEPLOYMENT, EMPTY), "index.json"),
    "extra file": (write("documents/ffffffffffff.json", "{}"), "documents/ffffffffffff.json"),
    "extra file in a subfolder": (add_file_in_subfolder, "documents/sub/x.json"),
    "extra dangling link": (lambda cache: (cache / "documents/x").symlink_to("nowhere"), "documents/x"),
}


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "unpacked"])
@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_found(name: str, packed: bool, cache: Path, call: Call) -> None:
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


def replace_by_copy(cache: Path) -> None:
    shutil.copytree(cache, cache.parent / "copy")
    shutil.rmtree(cache)
    (cache.parent / "copy").rename(cache)


HARMLESS: dict[str, Damage] = {
    "nothing": lambda cache: None,
    "an extra field nested as deep as we read": change_manifest(extra=nested(120)),
    "an extra integer of 5000 digits": edit(
        "manifest.json", '"document_count"', '"x": ' + "9" * 5000 + ', "document_count"'
    ),
    "file named with a stray slash": lambda cache: [
        change_entry(file=DEPLOYMENT.replace("/", "//./"))(cache),
        edit("index.json", DEPLOYMENT, DEPLOYMENT.replace("/", "//./"))(cache),
    ],
    "extra field in a document": edit(DEPLOYMENT, '"metadata":{}', '"metadata":{},"extra":[1,{"x":null}]'),
    "document with other spacing and escapes": edit(DEPLOYMENT, '"content":"D', ' "content" : "\\u0044'),
    "metadata of strings and integers": change_document(metadata={"a": "b", "n": -(2**63), "m": 2**63 - 1}),
    "source changed": change_document(source="anything"),
    "extra field in the manifest": change_manifest(extra={"a": 1.5}),
    "manifest in another order": lambda cache: change_manifest(
        documents=json.loads((cache / "manifest.json").read_text())["documents"][::-1]
    )(cache),
    "created_at with offset and fraction": change_manifest(created_at="2024-02-29t23:59:60.123456789+23:59"),
    "index reformatted": lambda cache: (cache / "index.json").write_text(
        json.dumps(json.loads((cache / "index.json").read_text()))
    ),
    "a file beside the manifest": write("notes.txt", "x"),
    "file named through dots that stay inside": lambda cache: [
        change_entry(file=f"documents/../{DEPLOYMENT}")(cache),
        edit("index.json", DEPLOYMENT, f"documents/../{DEPLOYMENT}")(cache),
    ],
    "touched": touch_all,
    "copied": replace_by_copy,
}


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "unpacked"])
@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_changes_do_not_change_the_answer(name: str, packed: bool, cache: Path, call: Call) -> None:
    query = ("resolve", "--cache", cache, "--query", "guide deployment", "--budget", 4000)
    before = call(*query)
    assert before.code == 0
    HARMLESS[name](cache)
    if not packed:
        shutil.rmtree(cache / "pack")
    after = call(*query)
    assert after == before
    assert call("verify", "--cache", cache).code == 0


def test_the_faults_of_a_cache_do_not_keep_its_documents_in_memory(cache: Path) -> None:
    for path in (cache / "documents").iterdir():
        path.write_bytes(b"{}")
    _, faults = CacheFolder(os.fsencode(cache)).faults(trusting_record=False)
    assert faults
    for fault in faults:
        assert (fault.__traceback__, fault.__context__, fault.__cause__) == (None, None, None)


def test_verify_lists_every_fault_at_once(cache: Path, call: Call) -> None:
    for name in ("count wrong", "document not JSON", "index has one more", "extra file"):
        FAULTS[name][0](cache)
    remove(EMPTY)(cache)
    ran = call("verify", "--cache", cache)
    assert ran.code == 5
    assert "5 faults" in ran.err.splitlines()[0]
    for file in ("manifest.json", DEPLOYMENT, EMPTY, "index.json", "documents/ffffffffffff.json"):
        assert f"reason: {file}: " in ran.err
    assert "context build" in ran.err.splitlines()[-1]


def test_an_error_has_the_same_text_each_time(cache: Path, call: Call) -> None:
    FAULTS["documents swapped"][0](cache)
    query = ("resolve", "--cache", cache, "--query", "q", "--budget", 1)
    assert call(*query) == call(*query)


def test_no_command_repairs_or_rebuilds_a_cache(cache: Path, call: Call) -> None:
    remove("index.json")(cache)
    for command in (("resolve", "--query", "q", "--budget", 1), ("inspect",), ("verify",)):
        call(command[0], "--cache", cache, *command[1:])
    assert not (cache / "index.json").exists()


def test_a_file_of_many_gigabytes_is_refused_before_it_is_read(cache: Path) -> None:
    """A sparse file takes no space on a disk, but reading it would take all of the memory."""
    document = next((cache / "documents").iterdir())
    os.truncate(document, 8 << 30)
    with pytest.raises(CacheInvalid):
        open_cache(cache).resolve("guide", 100)
