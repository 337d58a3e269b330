"""A build gives the whole cache or leaves everything as it was, whatever happens to it."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from contextfold import open_cache
from contextfold.resolve import files, replace
from machine import COMMAND, ROOT, Call, as_nobody, context, times, write_files

KILLER = ROOT / "tests" / "resolve" / "killed_build.py"


def ids(cache: Path) -> list[str]:
    return [entry["id"] for entry in json.loads((cache / "manifest.json").read_text())["documents"]]


def beside(cache: Path) -> list[str]:
    """What a build left behind next to the cache."""
    return sorted(name for name in os.listdir(cache.parent) if name.startswith(f".{cache.name}"))


class TestWhatIsADocument:
    def test_only_files_that_end_in_md_exactly(self, tmp_path: Path, call: Call) -> None:
        names = [
            "a.md",
            ".hidden.md",
            ".git/b.md",
            "c.MD",
            "d.markdown",
            ".md",
            "sub/.md",
            "e.md.txt",
            "f.md/g.md",
            "md",
        ]
        write_files(tmp_path / "docs", dict.fromkeys(names, "x"))
        assert call("build", "--sources", tmp_path / "docs", "--cache", tmp_path / "c").code == 0
        assert ids(tmp_path / "c") == [".git/b.md", ".hidden.md", "a.md", "f.md/g.md"]

    def test_links_pipes_and_sockets(self, tmp_path: Path, call: Call) -> None:
        docs = write_files(tmp_path / "docs", {"real.md": "x", "folder/in.md": "y"})
        (docs / "link.md").symlink_to("real.md")
        (docs / "nowhere.md").symlink_to("nothing")
        (docs / "loop.md").symlink_to("loop.md")
        (docs / "through.md").symlink_to("real.md/x")
        (docs / "linked").symlink_to("folder")
        (docs / "folder.md").symlink_to("folder")
        os.mkfifo(docs / "pipe.md")
        (docs / "pipe-link.md").symlink_to("pipe.md")
        assert call("build", "--sources", docs, "--cache", tmp_path / "c").code == 0
        assert ids(tmp_path / "c") == ["folder/in.md", "link.md", "real.md"]

    def test_the_id_is_lowercase_with_slashes_and_the_source_is_as_it_was(self, tmp_path: Path, call: Call) -> None:
        write_files(tmp_path / "docs", {"Sub/ΑΣ\\B.md": "x"})
        assert call("build", "--sources", tmp_path / "docs", "--cache", tmp_path / "c").code == 0
        (document,) = (json.loads(path.read_text()) for path in (tmp_path / "c" / "documents").iterdir())
        assert (document["id"], document["source"]) == ("sub/ας/b.md", "Sub/ΑΣ\\B.md")

    def test_two_files_with_one_id_are_both_named(self, tmp_path: Path, call: Call) -> None:
        write_files(tmp_path / "docs", {"A.md": "1", "a.md": "2"})
        ran = call("build", "--sources", tmp_path / "docs", "--cache", tmp_path / "c")
        assert ran.code == 5
        assert "A.md" in ran.err
        assert "a.md" in ran.err
        assert os.listdir(tmp_path) == ["docs"]

    def test_a_byte_order_mark_and_crlf_stay(self, tmp_path: Path, call: Call) -> None:
        content = b"\xef\xbb\xbfone\r\ntwo\r"
        write_files(tmp_path / "docs", {"a.md": content})
        assert call("build", "--sources", tmp_path / "docs", "--cache", tmp_path / "c").code == 0
        (document,) = open_cache(tmp_path / "c").resolve("two", 100).documents
        assert document.content.encode() == content

    @pytest.mark.parametrize("content", [b"\xff", b"ok \xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"a\xe2\x82"])
    def test_a_document_that_is_not_utf_8_is_named(self, content: bytes, tmp_path: Path, call: Call) -> None:
        write_files(tmp_path / "docs", {"a.md": "fine", "bad.md": content})
        ran = call("build", "--sources", tmp_path / "docs", "--cache", tmp_path / "c")
        assert ran.code == 5
        assert "bad.md" in ran.err
        assert os.listdir(tmp_path) == ["docs"]


class TestWhatMayBeReplaced:
    @pytest.mark.parametrize("force", [False, True])
    @pytest.mark.parametrize("kind", ["file", "dangling link", "folder", "link to a file"])
    def test_what_is_no_cache_is_left_alone(
        self, kind: str, force: bool, sources: Path, tmp_path: Path, call: Call
    ) -> None:
        target = tmp_path / "c"
        match kind:
            case "file":
                target.write_text("x")
            case "dangling link":
                target.symlink_to("nowhere")
            case "link to a file":
                target.symlink_to(sources / "deployment.md")
            case "folder":
                write_files(target, {"precious.txt": "x"})
        ran = call("build", "--sources", sources, "--cache", target, *(["--force"] if force else []))
        assert (ran.code, ran.out) == (6, b"")
        assert str(target) in ran.err
        assert os.path.lexists(target)
        assert not target.is_dir() or os.listdir(target) == ["precious.txt"]
        assert not (tmp_path / "nowhere").exists()
        assert beside(target) == []

    def test_an_empty_folder_is_replaced_by_force_only(self, sources: Path, tmp_path: Path, call: Call) -> None:
        (tmp_path / "c").mkdir()
        assert call("build", "--sources", sources, "--cache", tmp_path / "c").code == 6
        assert call("build", "--sources", sources, "--cache", tmp_path / "c", "--force").code == 0
        assert len(ids(tmp_path / "c")) == 3

    def test_a_cache_behind_a_link_is_replaced_where_it_lies(
        self, sources: Path, cache: Path, tmp_path: Path, call: Call
    ) -> None:
        (tmp_path / "current").symlink_to(cache)
        (sources / "new.md").write_text("new")
        assert call("build", "--sources", sources, "--cache", tmp_path / "current", "--force").code == 0
        assert (tmp_path / "current").is_symlink()
        assert "new.md" in ids(cache)

    def test_an_invalid_cache_can_be_made_anew(self, sources: Path, cache: Path, call: Call) -> None:
        (cache / "manifest.json").write_text("broken")
        assert call("build", "--sources", sources, "--cache", cache, "--force").code == 0
        assert call("verify", "--cache", cache).code == 0

    def test_missing_parents_are_made_and_removed_again_on_failure(
        self, sources: Path, tmp_path: Path, call: Call
    ) -> None:
        target = tmp_path / "a" / "b" / "c"
        (sources / "bad.md").write_bytes(b"\xff")
        assert call("build", "--sources", sources, "--cache", target).code == 5
        assert not (tmp_path / "a").exists()
        (sources / "bad.md").unlink()
        assert call("build", "--sources", sources, "--cache", target).code == 0
        assert len(ids(target)) == 3

    def test_a_failed_build_keeps_the_old_cache(self, sources: Path, cache: Path, call: Call) -> None:
        before = (cache / "manifest.json").read_bytes()
        (sources / "bad.md").write_bytes(b"\xff")
        assert call("build", "--sources", sources, "--cache", cache, "--force").code == 5
        assert (cache / "manifest.json").read_bytes() == before
        assert call("verify", "--cache", cache).code == 0
        assert beside(cache) == []

    def test_without_an_exchange_call_the_old_cache_is_set_aside_and_brought_back(
        self, sources: Path, cache: Path, call: Call, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(replace, "_rename_with", lambda _flag, _old, _new: False)
        (sources / "new.md").write_text("new")
        assert call("build", "--sources", sources, "--cache", cache, "--force").code == 0
        assert "new.md" in ids(cache)
        assert beside(cache) == []
        cache.rename(cache.parent / f".{cache.name}{files.SET_ASIDE_SUFFIX.decode()}")  # killed between two renames
        (sources / "bad.md").write_bytes(b"\xff")
        assert call("build", "--sources", sources, "--cache", cache, "--force").code == 5
        assert "new.md" in ids(cache)

    def test_a_cache_that_is_there_is_kept_without_force(self, sources: Path, cache: Path, call: Call) -> None:
        before = (cache / "manifest.json").stat()
        ran = call("build", "--sources", sources, "--cache", cache)
        assert ran.code == 6
        assert "--force" in ran.err
        assert (cache / "manifest.json").stat() == before

    @pytest.mark.parametrize("inside", ["", "docs"])
    def test_a_build_never_deletes_its_own_sources(self, inside: str, tmp_path: Path, call: Call) -> None:
        project = write_files(tmp_path / "project", {"manifest.json": "{}", "docs/a.md": "a", "code.py": "x"})
        ran = call("build", "--sources", project / inside, "--cache", project, "--force")
        assert ran.code == 6
        assert "choose another path" in ran.err
        assert (project / "docs" / "a.md").read_text() == "a"

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become nobody")
    def test_a_read_only_cache_is_replaced_again_and_again(self, sources: Path, tmp_path: Path) -> None:
        target = tmp_path / "open" / "c"
        target.parent.mkdir(mode=0o777)
        target.parent.chmod(0o777)
        for _ in range(3):
            argv = ("build", "--sources", str(sources), "--cache", str(target), "--force")
            ran = as_nobody(tmp_path, *argv)
            assert ran.returncode == 0, ran.stderr
            subprocess.run(["chmod", "-R", "a-w", target], check=True)
            assert beside(target) == []

    def test_only_the_contracts_files_and_the_pack_lie_in_a_cache(self, cache: Path) -> None:
        assert sorted(os.listdir(cache)) == ["documents", "index.json", "manifest.json", "pack"]
        assert sorted(os.listdir(cache / "pack")) == ["postings", "table"]

    def test_created_at_is_utc_wherever_we_are(self, sources: Path, tmp_path: Path) -> None:
        before = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        env = {"PATH": os.environ["PATH"], "TZ": "Asia/Tokyo"}
        assert context("build", "--sources", sources, "--cache", tmp_path / "c", env=env).code == 0
        created_at = json.loads((tmp_path / "c" / "manifest.json").read_text())["created_at"]
        assert before <= created_at <= time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    @pytest.mark.parametrize("documents", [3, 600])
    def test_everything_is_on_the_disk_before_it_is_put_in_place(
        self, documents: int, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_files(tmp_path / "docs", {f"{n}.md": f"{n}" for n in range(documents)})
        steps: list[str] = []
        real_fsync, real_rename, real_together = os.fsync, replace._rename_with, files._sync_file_system

        def fsync(descriptor: int) -> None:
            steps.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            real_fsync(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)

        def rename_with(flag: int, old: bytes, new: bytes) -> bool:
            steps.append("rename")
            return real_rename(flag, old, new)

        def together(folder: bytes) -> bool:
            steps.append("together")
            return real_together(folder)

        monkeypatch.setattr(replace, "_rename_with", rename_with)
        monkeypatch.setattr(files, "_sync_file_system", together)
        assert call("build", "--sources", tmp_path / "docs", "--cache", tmp_path / "c").code == 0
        before, after = steps[: steps.index("rename")], steps[steps.index("rename") + 1 :]
        assert after == [str(tmp_path)]
        if documents < files.SYNC_TOGETHER_FROM:
            staged = {os.path.basename(step) for step in before}
            assert {"manifest.json", "index.json", "table", "postings", "documents", "pack"} <= staged
            assert len([step for step in before if "/documents/" in step]) == documents
        else:
            assert "together" in before

    def test_awkward_targets_end_in_words(self, sources: Path, tmp_path: Path, call: Call) -> None:
        os.mkfifo(tmp_path / f".pipe{files.STAGING_SUFFIX.decode()}")
        assert call("build", "--sources", sources, "--cache", tmp_path / "pipe").code == 6
        assert call("build", "--sources", sources, "--cache", "").code == 6
        assert call("build", "--sources", sources, "--cache", tmp_path / ("n" * 300)).code == 6
        assert call("build", "--sources", sources, "--cache", f"{tmp_path}/new/./").code == 0
        assert len(ids(tmp_path / "new")) == 3
        assert call("build", "--sources", sources, "--cache", tmp_path / ("n" * 240)).code == 0
        assert call("build", "--sources", sources, "--cache", tmp_path / ("n" * 239 + "m")).code == 0

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become nobody")
    def test_a_working_folder_that_may_not_be_entered_is_an_error(self, sources: Path, tmp_path: Path) -> None:
        (tmp_path / "private").mkdir(mode=0o700)
        ran = as_nobody(tmp_path, "build", "--sources", str(sources), "--cache", "new/c", cwd=tmp_path / "private")
        assert ran.returncode == 6, ran


class TestFailures:
    @pytest.mark.parametrize("what", ["missing", "a file"])
    def test_sources_that_are_no_folder(self, what: str, tmp_path: Path, call: Call) -> None:
        if what == "a file":
            (tmp_path / "docs").write_text("x")
        ran = call("build", "--sources", tmp_path / "docs", "--cache", tmp_path / "c")
        assert ran.code == 6
        assert str(tmp_path / "docs") in ran.err

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become nobody")
    @pytest.mark.parametrize("unreadable", ["security.md", "notes"])
    def test_what_cannot_be_read_is_named_never_skipped(self, unreadable: str, sources: Path, tmp_path: Path) -> None:
        (sources / unreadable).chmod(0)
        ran = as_nobody(tmp_path, "build", "--sources", str(sources), "--cache", str(tmp_path / "c"))
        assert ran.returncode == 6
        assert unreadable in ran.stderr
        assert not (tmp_path / "c").exists()

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become nobody")
    @pytest.mark.parametrize("file", ["", "manifest.json", "index.json", "documents", "documents/19835fc46fd4.json"])
    def test_a_cache_that_cannot_be_read_is_an_io_error(self, file: str, cache: Path, tmp_path: Path) -> None:
        (cache / file).chmod(0)
        ran = as_nobody(tmp_path, "resolve", "--cache", str(cache), "--query", "q", "--budget", "5")
        assert (ran.returncode, ran.stdout) == (6, "")
        assert "Permission denied" in ran.stderr

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
    @pytest.mark.parametrize("kib", [4, 40, 120, 200])
    def test_a_full_disk_ends_in_an_error_and_loses_nothing(self, kib: int, tmp_path: Path) -> None:
        write_files(tmp_path / "docs", {f"{n}.md": f"word{n} " * 800 for n in range(30)})
        write_files(tmp_path / "old", {"old.md": "old"})
        script = f"""
            mkdir disk && mount -t tmpfs -o size=600k tmpfs disk || exit 99
            {COMMAND} build --sources old --cache disk/c || exit 98
            dd if=/dev/zero of=disk/ballast bs=1k count=$((600 - {kib} - 40)) 2>/dev/null
            {COMMAND} build --sources docs --cache disk/c --force; echo "code $?"
            {COMMAND} verify --cache disk/c; ls -A disk
        """
        ran = subprocess.run(
            ["unshare", "-m", "sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert "code 6\n" in ran.stdout, ran
        assert "No space left on device" in ran.stderr
        assert "ok: 1 documents" in ran.stdout
        assert ran.stdout.endswith("ballast\nc\n")

    def test_a_file_too_large_to_write_ends_in_an_error(self, tmp_path: Path) -> None:
        write_files(tmp_path / "docs", {"a.md": "x" * 100_000})
        limited = f"ulimit -f 10; exec {COMMAND} build --sources docs --cache c"
        ran = subprocess.run(["sh", "-c", limited], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == 6, ran
        assert os.listdir(tmp_path) == ["docs"]

    def test_a_source_that_changes_while_it_is_read_fails_the_build(
        self, sources: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from contextfold.resolve import build

        changes = {
            "grows": lambda: (sources / "deployment.md").write_text("more than before"),
            "appears": lambda: (sources / "late.md").write_text("late"),
            "vanishes": (sources / "notes" / "empty.md").unlink,
        }
        for name, change in changes.items():
            real = build._Build.write_manifest

            def write_manifest(
                self: build._Build, created_at: str, change: object = change, real: object = real
            ) -> object:
                change()  # type: ignore[operator]
                return real(self, created_at)  # type: ignore[operator]

            with monkeypatch.context() as patch:
                patch.setattr(build._Build, "write_manifest", write_manifest)
                ran = call("build", "--sources", sources, "--cache", tmp_path / "c")
            assert ran.code == 6, name
            assert "changed while" in ran.err
            assert not (tmp_path / "c").exists()

    def test_a_cache_is_never_made_of_half_written_sources(self, tmp_path: Path) -> None:
        """A writer rewrites one file over and over; each build gives one of its whole versions, or an error."""
        docs = write_files(tmp_path / "docs", {f"{n}.md": "x" for n in range(40)})
        versions = [letter * 200_000 for letter in "ab"]
        (docs / "busy.md").write_text(versions[0])
        stop = threading.Event()

        def rewrite() -> None:
            turn = 0
            while not stop.is_set():
                turn += 1
                with open(docs / "busy.md", "w") as file:
                    file.write(versions[turn % 2])
                stop.wait(0.03 if turn % 3 else 0.0)

        writer = threading.Thread(target=rewrite)
        writer.start()
        try:
            for number in range(times(6, 200)):
                ran = context("build", "--sources", docs, "--cache", tmp_path / f"c{number}")
                if ran.code == 0:
                    result = open_cache(tmp_path / f"c{number}").resolve("x", 10**9)
                    assert {d.content for d in result.documents if d.id == "busy.md"} <= set(versions)
                else:
                    assert ran.code == 6
                    assert "changed while" in ran.err
                    assert not (tmp_path / f"c{number}").exists()
        finally:
            stop.set()
            writer.join()

    def test_a_disk_that_cannot_be_read_is_an_io_error(
        self, sources: Path, cache: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "read", fail)
        for argv in (
            ("build", "--sources", sources, "--cache", tmp_path / "c"),
            ("resolve", "--cache", cache, "--query", "guide", "--budget", 4000),
            ("verify", "--cache", cache),
        ):
            ran = call(*argv)
            assert ran.code == 6
            assert "Input/output error" in ran.err
            assert "check the disk" in ran.err
        assert not (tmp_path / "c").exists()

    def test_a_path_that_is_not_utf_8_is_named(self, tmp_path: Path, call: Call) -> None:
        (tmp_path / "docs").mkdir()
        with open(os.fsencode(tmp_path) + b"/docs/bad\xff.md", "w"):
            pass
        ran = call("build", "--sources", tmp_path / "docs", "--cache", tmp_path / "c")
        assert ran.code == 5
        assert "bad\udcff.md" in ran.err
        assert os.listdir(tmp_path) == ["docs"]

    def test_a_files_name_cannot_forge_a_line_or_draw_on_the_terminal(self, tmp_path: Path, call: Call) -> None:
        write_files(tmp_path / "docs", {"a\nreason: all is well\x1b[31m.md": b"\xff"})
        ran = call("build", "--sources", tmp_path / "docs", "--cache", tmp_path / "c")
        assert len(ran.err.splitlines()) == 2
        assert "\x1b" not in ran.err
        assert "a\\x0areason: all is well\\x1b[31m.md" in ran.err

    def test_a_file_of_proc_is_refused_with_a_reason(self, tmp_path: Path, call: Call) -> None:
        (tmp_path / "docs").mkdir()
        (tmp_path / "docs" / "version.md").symlink_to("/proc/version")
        ran = call("build", "--sources", tmp_path / "docs", "--cache", tmp_path / "c")
        assert ran.code == 6
        assert "move it out of the sources" in ran.err


class TestKilled:
    @pytest.mark.parametrize("exchange", ["exchange", "no-exchange"])
    def test_killed_on_and_on_the_next_build_always_succeeds(
        self, exchange: str, sources: Path, tmp_path: Path, call: Call
    ) -> None:
        """Each build is killed one step later than the last, on whatever the last one left."""
        target = tmp_path / "c"
        assert call("build", "--sources", sources, "--cache", target).code == 0
        argv = ["build", "--sources", str(sources), "--cache", str(target), "--force"]
        for step in range(1, 1000, times(2, 1)):
            killed: list[str | Path] = [sys.executable, KILLER, exchange, str(step), *argv]
            done = subprocess.run(killed, capture_output=True, timeout=60, check=False)
            if done.returncode == 0:
                break
            ran = call(*argv)
            assert ran.code == 0, (step, ran.err)
            assert call("verify", "--cache", target).code == 0
            assert beside(target) == []
        else:
            pytest.fail("the build never ran to its end")

    @pytest.mark.parametrize("force", [False, True])
    def test_killed_at_any_step_it_leaves_the_old_cache_or_the_new(
        self, force: bool, sources: Path, tmp_path: Path, call: Call
    ) -> None:
        target = tmp_path / "c"
        write_files(tmp_path / "old", {"old.md": "old"})
        if force:
            assert call("build", "--sources", tmp_path / "old", "--cache", target).code == 0
        outcomes = set()
        for step in range(1, 1000, times(3, 1)):
            argv = ["build", "--sources", str(sources), "--cache", str(target), *(["--force"] if force else [])]
            done = subprocess.run(
                [sys.executable, KILLER, "exchange", str(step), *argv], capture_output=True, timeout=60, check=False
            )
            if not os.path.lexists(target):
                outcomes.add("nothing")
                assert not force
            else:
                assert call("verify", "--cache", target).code == 0
                outcomes.add("old" if ids(target) == ["old.md"] else "new")
                if ids(target) != ["old.md"]:  # start over from the old state, whatever the killed build left beside it
                    shutil.rmtree(target)
                    if force:
                        assert call("build", "--sources", tmp_path / "old", "--cache", target).code == 0
            if done.returncode == 0:
                break
            assert done.returncode == -signal.SIGKILL
        else:
            pytest.fail("the build never ran to its end")
        assert outcomes == ({"old", "new"} if force else {"nothing", "new"})
        assert call("build", "--sources", sources, "--cache", target, "--force").code == 0
        assert beside(target) == []

    def test_killed_at_a_random_moment(self, tmp_path: Path, call: Call) -> None:
        docs = write_files(tmp_path / "docs", {f"{n}.md": f"word{n} " * 50 for n in range(300)})
        target = tmp_path / "c"
        assert call("build", "--sources", docs, "--cache", target).code == 0
        chance = random.Random(20240607)
        for _ in range(times(8, 300)):
            process = subprocess.Popen(
                [COMMAND, "build", "--sources", docs, "--cache", target, "--force"], stderr=subprocess.PIPE
            )
            time.sleep(chance.uniform(0.02, 0.5))
            process.kill()
            process.communicate()
            assert call("verify", "--cache", target).code == 0
        assert call("build", "--sources", docs, "--cache", target, "--force").code == 0
        assert beside(target) == []

    @pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_a_polite_end_cleans_up(self, how: signal.Signals, tmp_path: Path) -> None:
        docs = write_files(tmp_path / "docs", {f"{n}.md": f"word{n} " * 50 for n in range(3000)})
        target = tmp_path / "c"
        process = subprocess.Popen([COMMAND, "build", "--sources", docs, "--cache", target], stderr=subprocess.PIPE)
        while not beside(target):
            assert process.poll() is None
        process.send_signal(how)
        process.communicate(timeout=60)
        assert process.returncode == 128 + how
        assert os.listdir(tmp_path) == ["docs"]

    def test_a_hangup_that_is_ignored_stays_ignored(self, tmp_path: Path) -> None:
        docs = write_files(tmp_path / "docs", {f"{n}.md": f"word{n} " * 50 for n in range(3000)})
        target = tmp_path / "c"
        argv: list[str | Path] = ["nohup", COMMAND, "build", "--sources", docs, "--cache", target]
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while not beside(target):
            assert process.poll() is None
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=60)
        assert process.returncode == 0
        assert len(ids(target)) == 3000


class TestTwoOfUs:
    def test_two_builds_to_one_target_end_in_one_cache_and_clear_errors(self, tmp_path: Path, call: Call) -> None:
        docs = write_files(tmp_path / "docs", {f"{n}.md": f"word{n} " * 20 for n in range(200)})
        target = tmp_path / "c"
        for turn in range(times(3, 60)):
            force = ["--force"] if turn else []
            argv: list[str | Path] = [COMMAND, "build", "--sources", docs, "--cache", target, *force]
            racers = [subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) for _ in range(4)]
            ends = [(racer.communicate()[1], racer.returncode) for racer in racers]
            assert {code for _, code in ends} <= {0, 6}
            assert [code for _, code in ends].count(0) >= 1
            for err, code in ends:
                assert code == 0 or "another build is writing" in err or "already there" in err, err
            assert call("verify", "--cache", target).code == 0
            assert beside(target) == []

    def test_two_builds_below_one_missing_parent_both_succeed(self, sources: Path, tmp_path: Path) -> None:
        for turn in range(times(5, 100)):
            argvs: list[list[str | Path]] = [
                [COMMAND, "build", "--sources", sources, "--cache", tmp_path / f"new{turn}" / "q" / n] for n in "abc"
            ]
            racers = [subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) for argv in argvs]
            ends = [(racer.communicate()[1], racer.returncode) for racer in racers]
            assert [code for _, code in ends] == [0, 0, 0], ends

    def test_who_reads_while_the_cache_is_replaced_gets_the_old_answer_or_the_new(
        self, tmp_path: Path, call: Call
    ) -> None:
        target = tmp_path / "c"
        for name in ("one", "two"):
            write_files(tmp_path / name, {f"{n}.md": name for n in range(30)})
        assert call("build", "--sources", tmp_path / "one", "--cache", target).code == 0
        answers = {open_cache(target).resolve("one", 10).to_json()}
        stop = threading.Event()
        failures: list[str] = []

        def rebuild() -> None:
            turn = 0
            while not stop.is_set():
                turn += 1
                ran = context("build", "--sources", tmp_path / ("one", "two")[turn % 2], "--cache", target, "--force")
                if ran.code:
                    failures.append(ran.err)

        builder = threading.Thread(target=rebuild)
        builder.start()
        try:
            for _ in range(times(400, 20000)):
                answers.add(open_cache(target).resolve("one", 10).to_json())
        finally:
            stop.set()
            builder.join()
        assert failures == []
        assert len(answers) == 2
