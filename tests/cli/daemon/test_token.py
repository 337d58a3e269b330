"""`context token`: a token on stdout, its hash in the file, and nothing else changed."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from contextfold.serve.http.bearer_tokens import TokenFile, hash_token
from tests.support.machine import COMMAND, Call


def test_stdout_has_only_the_token_and_the_file_its_hash(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    done = call("token", "alice", "--token-file", file)
    assert done.code == 0
    token = done.out.decode().removesuffix("\n")
    assert TokenFile(str(file), print).owner_of(token) == "alice"
    assert file.read_text() == f"alice {hash_token(token)}\n"
    assert done.err == f"note: this token is shown once: {file} keeps its hash alone; remove that line to revoke it\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_all_other_lines_are_preserved_to_the_byte(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    before = (
        f"# ours\r\n\n\t bob   {hash_token('b').upper().replace('SHA', 'sha')}\n# the last line has no end".encode()
    )
    file.write_bytes(before)
    file.chmod(0o400)
    assert call("token", "alice", "--token-file", file).code == 0
    added = file.read_bytes().removeprefix(before + b"\n")
    assert added.startswith(b"alice sha256:")
    assert added.count(b"\n") == 1
    assert stat.S_IMODE(file.stat().st_mode) == 0o400
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]


def test_concurrent_runs_add_all_their_tokens(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    argv = [str(COMMAND), "token"]
    running = [
        subprocess.Popen(
            [*argv, f"owner{number}", "--token-file", file], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for number in range(12)
    ]
    tokens = [process.communicate(timeout=60)[0].decode().strip() for process in running]
    assert [process.returncode for process in running] == [0] * 12
    token_file = TokenFile(str(file), print)
    assert [token_file.owner_of(token) for token in tokens] == [f"owner{number}" for number in range(12)]
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]


def test_a_link_remains_and_its_target_is_written(call: Call, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("tokens")
    assert call("token", "alice", "--token-file", tmp_path / "link").code == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "tokens").read_text().startswith("alice ")


@pytest.mark.parametrize("content", [b"nonsense\n", b"\xff\n"])
def test_an_invalid_file_is_refused_and_unchanged(call: Call, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "tokens"
    file.write_bytes(content)
    file.chmod(0o600)
    done = call("token", "alice", "--token-file", file)
    assert (done.code, done.out) == (1, b"")
    assert done.err.startswith(f"error: {file}, line 1: ")
    assert file.read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]


def test_a_file_that_others_may_read_is_refused_with_a_remedy(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.touch(0o644)
    file.chmod(0o644)
    done = call("token", "alice", "--token-file", file)
    assert done == (1, b"", f"error: {file} is open to other users; close it with `chmod 600 {file}`\n")


def test_an_invalid_owner_name_is_refused(call: Call, tmp_path: Path) -> None:
    done = call("token", "al ice", "--token-file", tmp_path / "tokens")
    assert (done.code, done.out) == (1, b"")
    assert done.err.startswith("error: an owner is a letter or digit")
    assert not [*tmp_path.iterdir()]


def test_a_missing_folder_is_an_error(call: Call, tmp_path: Path) -> None:
    done = call("token", "alice", "--token-file", tmp_path / "none" / "tokens")
    assert (done.code, done.out) == (6, b"")
    assert str(tmp_path / "none") in done.err
