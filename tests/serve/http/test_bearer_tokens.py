"""The file of tokens and owners: its format, invalid files, and changes while the daemon runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from contextfold.errors import SettingsError
from contextfold.serve.http.bearer_tokens import (
    FILE_MAX_BYTES,
    TokenFile,
    add_token,
    check_owner,
    hash_token,
    make_token,
    parse_tokens,
)

ONE = hash_token("one")
TWO = hash_token("two")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.touch(0o600)
    return path


class Messages(list[str]):
    def __call__(self, text: str) -> None:
        self.append(text)


def test_tokens_are_long_different_and_recognisable() -> None:
    tokens = {make_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(token.startswith("ctx_") and len(token) >= 47 and token.isascii() for token in tokens)


def test_a_file_has_owners_and_hashes_comments_and_blank_lines() -> None:
    text = f"# ours\n\nalice {ONE}\r\n  bob\t{TWO.upper().replace('SHA', 'sha')}  \n #{ONE}\nalice {ONE}"
    assert parse_tokens(text.encode(), "tokens") == {ONE: "alice", TWO: "bob"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"alice", "an entry has two words"),
        (b"alice " + ONE.encode() + b" # laptop", "an entry has two words"),
        (b"alice ctx_hush", "the second word is no sha256:"),
        (b"alice sha256:abc", "the second word is no sha256:"),
        (b"-alice " + ONE.encode(), "the first word is no owner's name"),
        (b"a/b " + ONE.encode(), "the first word is no owner's name"),
        (b"a" * 65 + b" " + ONE.encode(), "the first word is no owner's name"),
        (b"\xff\xfe", "this is not UTF-8 text"),
    ],
)
def test_an_invalid_line_is_reported_by_its_number_and_not_quoted(line: bytes, message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        parse_tokens(b"# first\n\n" + line + b"\n", "tokens")
    assert str(raised.value).startswith(f"tokens, line 3: {message}")
    assert "\n" not in str(raised.value)
    assert "hush" not in str(raised.value)


def test_one_token_cannot_have_two_owners() -> None:
    with pytest.raises(SettingsError, match="line 2: another owner has this very token"):
        parse_tokens(f"alice {ONE}\nbob {ONE}\n".encode(), "tokens")


@pytest.mark.parametrize("owner", ["", "a b", "-a", "a\n", "é", "a" * 65, "#a"])
def test_an_invalid_owner_name_is_refused(owner: str) -> None:
    with pytest.raises(SettingsError, match="an owner is"):
        check_owner(owner)


def test_a_token_belongs_to_its_owner_only(path: Path) -> None:
    tokens = {owner: add_token(str(path), owner) for owner in ("alice", "bob", "a.b_c@d-e")}
    file = TokenFile(str(path), Messages())
    assert {owner: file.owner_of(token) for owner, token in tokens.items()} == {owner: owner for owner in tokens}
    for guess in ("", "ctx_", tokens["bob"][:-1], hash_token(tokens["bob"]), "x" * 100_000, "\udcff"):
        assert file.owner_of(guess) is None


def test_added_and_removed_lines_take_effect_at_once(path: Path) -> None:
    file = TokenFile(str(path), Messages())
    # The file is rewritten in place within one tick of the file system's clock, so its timestamp does not change.
    for turn in range(20):
        path.write_text(f"alice {ONE}\n" if turn % 2 else f"alice {TWO}\n")
        assert (file.owner_of("one"), file.owner_of("two")) == (("alice", None) if turn % 2 else (None, "alice"))
    path.write_text("")
    assert file.owner_of("two") is None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "there is no "),
        (lambda path: path.write_text("nonsense\n"), "line 1: an entry has two words"),
        (lambda path: path.chmod(0o640), "chmod 600"),
        (lambda path: (path.unlink(), path.mkdir()), "is not a file"),
    ],
)
def test_an_invalid_file_accepts_no_token_and_is_reported_once(
    path: Path, damage: Callable[[Path], object], message: str
) -> None:
    path.write_text(f"alice {ONE}\n")
    messages = Messages()
    file = TokenFile(str(path), messages)
    assert file.owner_of("one") == "alice"
    damage(path)
    assert [file.owner_of("one") for _ in range(3)] == [None] * 3
    assert len(messages) == 1
    assert messages[0].startswith("no token is accepted: ")
    assert message in messages[0]
    if path.is_dir():
        path.rmdir()
    path.write_text(f"alice {ONE}\n")
    path.chmod(0o600)
    assert file.owner_of("one") == "alice"
    assert messages[1:] == [f"{path} is valid again"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o602, 0o604, 0o610])
def test_a_file_that_others_may_access_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    with pytest.raises(SettingsError, match=f"chmod 600 {path}"):
        TokenFile(str(path), Messages())
    with pytest.raises(SettingsError, match=f"chmod 600 {path}"):
        add_token(str(path), "alice")


def test_a_missing_file_a_pipe_and_a_huge_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="context token OWNER --token-file"):
        TokenFile(str(tmp_path / "none"), Messages())
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(SettingsError, match="is not a file"):
        TokenFile(str(tmp_path / "pipe"), Messages())
    with (tmp_path / "big").open("wb") as big:
        os.fchmod(big.fileno(), 0o600)
        big.truncate(FILE_MAX_BYTES + 1)
    with pytest.raises(SettingsError, match="more than 4 MiB"):
        TokenFile(str(tmp_path / "big"), Messages())
