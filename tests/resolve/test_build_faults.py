"""A build makes a complete cache or changes nothing, whatever interrupts it."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from contextfold import open_cache
from tests.resolve.killed_build import kill_at_step
from tests.support.machine import COMMAND, Call, as_nobody, ids, leftover_files, run_command, times, write_files
from tests.support.processes import run_in_fork
from tests.support.waiting import until


class TestFailures:
    @pytest.mark.parametrize("sources_are", ["missing", "a file"])
    def test_sources_that_are_missing_or_a_file_are_an_error(
        self, sources_are: str, tmp_path: Path, call: Call
    ) -> None:
        if sources_are == "a file":
            (tmp_path / "docs").write_text("x")
        ran = call("build", "--sources", tmp_path / "docs", "--cache", tmp_path / "c")
        assert ran.code == 6
        assert str(tmp_path / "docs") in ran.err

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become nobody")
    @pytest.mark.parametrize("unreadable", ["security.md", "notes"])
    def test_an_unreadable_source_is_an_error_that_names_it(
        self, unreadable: str, sources: Path, tmp_path: Path
    ) -> None:
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

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become nobody")
    @pytest.mark.parametrize("file", ["pack", "pack/fingerprints", "pack/index.sqlite"])
    def test_an_index_that_cannot_be_read_is_an_io_error(self, file: str, cache: Path, tmp_path: Path) -> None:
        (cache / file).chmod(0)
        ran = as_nobody(tmp_path, "ask", "q", "--cache", str(cache))
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
        script = f"ulimit -f 10; exec {COMMAND} build --sources docs --cache c"
        ran = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == 6, ran
        assert os.listdir(tmp_path) == ["docs"]

    def test_a_source_that_changes_while_it_is_read_fails_the_build(
        self, sources: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from contextfold.resolve import cache_writer

        changes = {
            "grows": lambda: (sources / "deployment.md").write_text("more than before"),
            "appears": lambda: (sources / "late.md").write_text("late"),
            "vanishes": (sources / "notes" / "empty.md").unlink,
        }
        for name, change in changes.items():
            real = cache_writer.CacheWriter.write_manifest

            def write_manifest(
                self: cache_writer.CacheWriter, created_at: str, change: object = change, real: object = real
            ) -> object:
                change()  # type: ignore[operator]
                return real(self, created_at)  # type: ignore[operator]

            with monkeypatch.context() as patch:
                patch.setattr(cache_writer.CacheWriter, "write_manifest", write_manifest)
                ran = call("build", "--sources", sources, "--cache", tmp_path / "c")
            assert ran.code == 6, name
            assert "changed while" in ran.err
            assert not (tmp_path / "c").exists()

    def test_a_cache_never_has_a_partially_written_source(self, tmp_path: Path) -> None:
        """A thread rewrites one file repeatedly. Each build has one of its complete versions, or fails."""
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
            for number in range(times(3, 200)):
                ran = run_command("build", "--sources", docs, "--cache", tmp_path / f"c{number}")
                if ran.code == 0:
                    result = open_cache(tmp_path / f"c{number}").resolve("x", 10**9)
                    # While the writer waits for its turn, the file is empty, and that is all of it.
                    assert {d.content for d in result.documents if d.id == "busy.md"} <= {"", *versions}
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

    def test_a_path_that_is_not_utf_8_is_an_error_that_names_it(self, tmp_path: Path, call: Call) -> None:
        (tmp_path / "docs").mkdir()
        with open(os.fsencode(tmp_path) + b"/docs/bad\xff.md", "w"):
            pass
        ran = call("build", "--sources", tmp_path / "docs", "--cache", tmp_path / "c")
        assert ran.code == 5
        assert "bad\udcff.md" in ran.err
        assert os.listdir(tmp_path) == ["docs"]

    def test_control_characters_of_file_names_are_escaped_in_messages(self, tmp_path: Path, call: Call) -> None:
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


@pytest.fixture(scope="module")
def many_documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So many documents that a build can be interrupted."""
    return write_files(tmp_path_factory.mktemp("many"), {f"{n}.md": f"word{n} " * 50 for n in range(3000)})


class TestKilled:
    @pytest.mark.parametrize("has_exchange", [True, False])
    def test_after_any_number_of_killed_builds_the_next_one_succeeds(
        self, has_exchange: bool, sources: Path, tmp_path: Path, call: Call
    ) -> None:
        """Each build is killed one step later than the previous one, and starts from the files that it left."""
        target = tmp_path / "c"
        assert call("build", "--sources", sources, "--cache", target).code == 0
        argv = ["build", "--sources", str(sources), "--cache", str(target), "--force"]
        for step in range(1, 1000, times(4, 1)):
            done = run_in_fork(*argv, prepare=partial(kill_at_step, step, has_exchange=has_exchange))
            if done.code == 0:
                break
            ran = call(*argv)
            assert ran.code == 0, (step, ran.err)
            assert call("verify", "--cache", target).code == 0
            assert leftover_files(target) == []
        else:
            pytest.fail("the build never ran to its end")

    @pytest.mark.parametrize("force", [False, True])
    def test_a_build_killed_at_any_step_leaves_the_old_cache_or_the_new(
        self, force: bool, sources: Path, tmp_path: Path, call: Call
    ) -> None:
        target = tmp_path / "c"
        write_files(tmp_path / "old", {"old.md": "old"})
        if force:
            assert call("build", "--sources", tmp_path / "old", "--cache", target).code == 0
        outcomes = set()
        for step in range(1, 1000, times(5, 1)):
            argv = ["build", "--sources", str(sources), "--cache", str(target), *(["--force"] if force else [])]
            done = run_in_fork(*argv, prepare=partial(kill_at_step, step))
            if not os.path.lexists(target):
                outcomes.add("nothing")
                assert not force
            else:
                assert call("verify", "--cache", target).code == 0
                outcomes.add("old" if ids(target) == ["old.md"] else "new")
                if ids(target) != ["old.md"]:
                    # The next step starts from the old state, whatever the killed build left next to it.
                    shutil.rmtree(target)
                    if force:
                        assert call("build", "--sources", tmp_path / "old", "--cache", target).code == 0
            if done.code == 0:
                break
            assert done.code == -signal.SIGKILL
        else:
            pytest.fail("the build never ran to its end")
        assert outcomes == ({"old", "new"} if force else {"nothing", "new"})
        assert call("build", "--sources", sources, "--cache", target, "--force").code == 0
        assert leftover_files(target) == []

    def test_a_build_killed_at_a_random_moment_leaves_a_valid_cache(self, tmp_path: Path, call: Call) -> None:
        docs = write_files(tmp_path / "docs", {f"{n}.md": f"word{n} " * 50 for n in range(300)})
        target = tmp_path / "c"
        assert call("build", "--sources", docs, "--cache", target).code == 0
        rng = random.Random(20240607)
        for _ in range(times(4, 300)):
            process = subprocess.Popen(
                [COMMAND, "build", "--sources", docs, "--cache", target, "--force"], stderr=subprocess.PIPE
            )
            time.sleep(rng.uniform(0.02, 0.5))
            process.kill()
            process.communicate()
            assert call("verify", "--cache", target).code == 0
        assert call("build", "--sources", docs, "--cache", target, "--force").code == 0
        assert leftover_files(target) == []

    @pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_a_build_ended_by_a_signal_removes_its_files(
        self, signal_number: signal.Signals, many_documents: Path, tmp_path: Path
    ) -> None:
        target = tmp_path / "c"
        argv: list[str | Path] = [COMMAND, "build", "--sources", many_documents, "--cache", target]
        process = subprocess.Popen(argv, stderr=subprocess.PIPE)
        until(lambda: bool(leftover_files(target)) or process.poll() is not None, every_s=0.002)
        process.send_signal(signal_number)
        process.communicate(timeout=60)
        assert process.returncode == 128 + signal_number
        assert os.listdir(tmp_path) == []

    def test_a_build_under_nohup_ignores_sighup(self, many_documents: Path, tmp_path: Path) -> None:
        target = tmp_path / "c"
        argv: list[str | Path] = ["nohup", COMMAND, "build", "--sources", many_documents, "--cache", target]
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        until(lambda: bool(leftover_files(target)) or process.poll() is not None, every_s=0.002)
        assert process.poll() is None
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=60)
        assert process.returncode == 0
        assert len(ids(target)) == 3000


class TestConcurrency:
    def test_concurrent_builds_of_one_target_leave_one_valid_cache(self, tmp_path: Path, call: Call) -> None:
        docs = write_files(tmp_path / "docs", {f"{n}.md": f"word{n} " * 20 for n in range(200)})
        target = tmp_path / "c"
        for turn in range(times(2, 60)):
            force = ["--force"] if turn else []
            argv: list[str | Path] = [COMMAND, "build", "--sources", docs, "--cache", target, *force]
            processes = [subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) for _ in range(4)]
            results = [(process.communicate()[1], process.returncode) for process in processes]
            assert {code for _, code in results} <= {0, 6}
            assert [code for _, code in results].count(0) >= 1
            for err, code in results:
                assert code == 0 or "another build is writing" in err or "already there" in err, err
            assert call("verify", "--cache", target).code == 0
            assert leftover_files(target) == []

    def test_concurrent_builds_below_one_missing_parent_all_succeed(self, sources: Path, tmp_path: Path) -> None:
        for turn in range(times(3, 100)):
            argvs: list[list[str | Path]] = [
                [COMMAND, "build", "--sources", sources, "--cache", tmp_path / f"new{turn}" / "q" / n] for n in "abc"
            ]
            processes = [subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) for argv in argvs]
            results = [(process.communicate()[1], process.returncode) for process in processes]
            assert [code for _, code in results] == [0, 0, 0], results

    def test_readers_during_a_replacement_get_the_old_answer_or_the_new(self, tmp_path: Path, call: Call) -> None:
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
                ran = run_in_fork(
                    "build", "--sources", tmp_path / ("one", "two")[turn % 2], "--cache", target, "--force"
                )
                if ran.code:
                    failures.append(ran.err)

        def has_seen_both() -> bool:
            answers.add(open_cache(target).resolve("one", 10).to_json())
            return len(answers) > 1

        builder = threading.Thread(target=rebuild)
        builder.start()
        try:
            for _ in range(times(150, 20000)):
                answers.add(open_cache(target).resolve("one", 10).to_json())
            # A build may take longer than the whole loop.
            until(has_seen_both)
        finally:
            stop.set()
            builder.join()
        assert failures == []
        assert len(answers) == 2
