"""Which files become documents, and what a build may replace."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from contextfold import open_cache
from contextfold.resolve import files, replace
from tests.support.machine import Call, as_nobody, file_version, ids, leftover_files, run_command, write_files


class TestDocumentChoice:
    def test_only_names_that_end_in_md_are_documents(self, tmp_path: Path, call: Call) -> None:
        names = ["a.md", ".hidden.md", ".git/b.md", "c.MD", "d.markdown", ".md"]
        names += ["sub/.md", "e.md.txt", "f.md/g.md", "md"]
        write_files(tmp_path / "docs", dict.fromkeys(names, "x"))
        assert call("build", "--sources", tmp_path / "docs", "--cache", tmp_path / "c").code == 0
        assert ids(tmp_path / "c") == [".git/b.md", ".hidden.md", "a.md", "f.md/g.md"]

    def test_links_to_files_are_documents_and_other_special_files_are_not(self, tmp_path: Path, call: Call) -> None:
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

    def test_the_id_is_lowercase_with_slashes_and_the_source_is_unchanged(self, tmp_path: Path, call: Call) -> None:
        write_files(tmp_path / "docs", {"Sub/ΑΣ\\B.md": "x"})
        assert call("build", "--sources", tmp_path / "docs", "--cache", tmp_path / "c").code == 0
        (document,) = (json.loads(path.read_text()) for path in (tmp_path / "c" / "documents").iterdir())
        assert (document["id"], document["source"]) == ("sub/ας/b.md", "Sub/ΑΣ\\B.md")

    def test_two_files_with_the_same_id_are_an_error_that_names_both(self, tmp_path: Path, call: Call) -> None:
        write_files(tmp_path / "docs", {"A.md": "1", "a.md": "2"})
        ran = call("build", "--sources", tmp_path / "docs", "--cache", tmp_path / "c")
        assert ran.code == 5
        assert "A.md" in ran.err
        assert "a.md" in ran.err
        assert os.listdir(tmp_path) == ["docs"]

    def test_a_byte_order_mark_and_crlf_are_preserved(self, tmp_path: Path, call: Call) -> None:
        content = b"\xef\xbb\xbfone\r\ntwo\r"
        write_files(tmp_path / "docs", {"a.md": content})
        assert call("build", "--sources", tmp_path / "docs", "--cache", tmp_path / "c").code == 0
        (document,) = open_cache(tmp_path / "c").resolve("two", 100).documents
        assert document.content.encode() == content

    @pytest.mark.parametrize("content", [b"\xff", b"ok \xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"a\xe2\x82"])
    def test_a_document_that_is_not_utf_8_is_an_error_that_names_it(
        self, content: bytes, tmp_path: Path, call: Call
    ) -> None:
        write_files(tmp_path / "docs", {"a.md": "fine", "bad.md": content})
        ran = call("build", "--sources", tmp_path / "docs", "--cache", tmp_path / "c")
        assert ran.code == 5
        assert "bad.md" in ran.err
        assert os.listdir(tmp_path) == ["docs"]


class TestReplacement:
    @pytest.mark.parametrize("force", [False, True])
    @pytest.mark.parametrize("kind", ["file", "dangling link", "folder", "link to a file"])
    def test_a_target_that_is_no_cache_is_refused_and_unchanged(
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
        assert leftover_files(target) == []

    def test_an_empty_folder_is_replaced_only_with_force(self, sources: Path, tmp_path: Path, call: Call) -> None:
        (tmp_path / "c").mkdir()
        assert call("build", "--sources", sources, "--cache", tmp_path / "c").code == 6
        assert call("build", "--sources", sources, "--cache", tmp_path / "c", "--force").code == 0
        assert len(ids(tmp_path / "c")) == 3

    def test_a_link_remains_and_the_cache_that_it_names_is_replaced(
        self, sources: Path, cache: Path, tmp_path: Path, call: Call
    ) -> None:
        (tmp_path / "current").symlink_to(cache)
        (sources / "new.md").write_text("new")
        assert call("build", "--sources", sources, "--cache", tmp_path / "current", "--force").code == 0
        assert (tmp_path / "current").is_symlink()
        assert "new.md" in ids(cache)

    def test_an_invalid_cache_can_be_replaced(self, sources: Path, cache: Path, call: Call) -> None:
        (cache / "manifest.json").write_text("broken")
        assert call("build", "--sources", sources, "--cache", cache, "--force").code == 0
        assert call("verify", "--cache", cache).code == 0

    def test_missing_parent_folders_are_created_and_removed_after_a_failure(
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
        assert leftover_files(cache) == []

    def test_without_an_exchange_call_an_interrupted_replacement_is_undone(
        self, sources: Path, cache: Path, call: Call, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(replace, "_rename_with", lambda _flag, _old, _new: False)
        (sources / "new.md").write_text("new")
        assert call("build", "--sources", sources, "--cache", cache, "--force").code == 0
        assert "new.md" in ids(cache)
        assert leftover_files(cache) == []
        # This is the state after a kill between the two renames.
        cache.rename(cache.parent / f".{cache.name}{files.SET_ASIDE_SUFFIX.decode()}")
        (sources / "bad.md").write_bytes(b"\xff")
        assert call("build", "--sources", sources, "--cache", cache, "--force").code == 5
        assert "new.md" in ids(cache)

    def test_an_existing_cache_is_not_replaced_without_force(self, sources: Path, cache: Path, call: Call) -> None:
        before = file_version(cache / "manifest.json")
        ran = call("build", "--sources", sources, "--cache", cache)
        assert ran.code == 6
        assert "--force" in ran.err
        assert file_version(cache / "manifest.json") == before

    @pytest.mark.parametrize("sources_folder", ["", "docs"])
    def test_a_build_never_deletes_its_own_sources(self, sources_folder: str, tmp_path: Path, call: Call) -> None:
        project = write_files(tmp_path / "project", {"manifest.json": "{}", "docs/a.md": "a", "code.py": "x"})
        ran = call("build", "--sources", project / sources_folder, "--cache", project, "--force")
        assert ran.code == 6
        assert "choose another path" in ran.err
        assert (project / "docs" / "a.md").read_text() == "a"

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become nobody")
    def test_a_read_only_cache_can_be_replaced_repeatedly(self, sources: Path, tmp_path: Path) -> None:
        target = tmp_path / "open" / "c"
        target.parent.mkdir(mode=0o777)
        target.parent.chmod(0o777)
        for _ in range(3):
            argv = ("build", "--sources", str(sources), "--cache", str(target), "--force")
            ran = as_nobody(tmp_path, *argv)
            assert ran.returncode == 0, ran.stderr
            subprocess.run(["chmod", "-R", "a-w", target], check=True)
            assert leftover_files(target) == []

    def test_a_cache_has_only_the_specified_files_and_the_pack(self, cache: Path) -> None:
        assert sorted(os.listdir(cache)) == ["documents", "index.json", "manifest.json", "pack"]
        assert sorted(os.listdir(cache / "pack")) == ["fingerprints", "index.sqlite"]

    def test_created_at_is_utc_in_every_time_zone(self, sources: Path, tmp_path: Path) -> None:
        before = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "TZ": "Asia/Tokyo"}
        assert run_command("build", "--sources", sources, "--cache", tmp_path / "c", env=env).code == 0
        created_at = json.loads((tmp_path / "c" / "manifest.json").read_text())["created_at"]
        assert before <= created_at <= time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    @pytest.mark.parametrize("documents", [3, 600])
    def test_all_files_are_synced_before_the_cache_is_renamed(
        self, documents: int, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_files(tmp_path / "docs", {f"{n}.md": f"{n}" for n in range(documents)})
        steps: list[str] = []
        real_fsync, real_rename, real_sync_all = os.fsync, replace._rename_with, files._sync_file_system

        def fsync(descriptor: int) -> None:
            steps.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            real_fsync(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)

        def rename_with(flag: int, old: bytes, new: bytes) -> bool:
            steps.append("rename")
            return real_rename(flag, old, new)

        def sync_all(folder: bytes) -> bool:
            steps.append("sync_all")
            return real_sync_all(folder)

        monkeypatch.setattr(replace, "_rename_with", rename_with)
        monkeypatch.setattr(files, "_sync_file_system", sync_all)
        assert call("build", "--sources", tmp_path / "docs", "--cache", tmp_path / "c").code == 0
        before, after = steps[: steps.index("rename")], steps[steps.index("rename") + 1 :]
        assert after == [str(tmp_path)]
        if documents < files.SYNC_TOGETHER_FROM:
            staged = {os.path.basename(step) for step in before}
            assert {"manifest.json", "index.json", "index.sqlite", "fingerprints", "documents", "pack"} <= staged
            assert len([step for step in before if "/documents/" in step]) == documents
        else:
            assert "sync_all" in before

    def test_unusual_target_paths_are_built_or_refused(self, sources: Path, tmp_path: Path, call: Call) -> None:
        os.mkfifo(tmp_path / f".pipe{files.STAGING_SUFFIX.decode()}")
        assert call("build", "--sources", sources, "--cache", tmp_path / "pipe").code == 6
        assert call("build", "--sources", sources, "--cache", "").code == 6
        assert call("build", "--sources", sources, "--cache", tmp_path / ("n" * 300)).code == 6
        assert call("build", "--sources", sources, "--cache", f"{tmp_path}/new/./").code == 0
        assert len(ids(tmp_path / "new")) == 3
        assert call("build", "--sources", sources, "--cache", tmp_path / ("n" * 240)).code == 0
        assert call("build", "--sources", sources, "--cache", tmp_path / ("n" * 239 + "m")).code == 0

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become nobody")
    def test_a_working_folder_without_permission_is_an_error(self, sources: Path, tmp_path: Path) -> None:
        (tmp_path / "private").mkdir(mode=0o700)
        ran = as_nobody(tmp_path, "build", "--sources", str(sources), "--cache", "new/c", cwd=tmp_path / "private")
        assert ran.returncode == 6, ran
