"""Tokens and owners: what is stored, what is refused, and that changes of the file take effect at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from contextfold.serve.http import bearer_tokens as tokens
from contextfold.serve.http.bearer_tokens import FILE_MAX_BYTES, TokenFile, add, check_owner, hashed, mint, parse
from contextfold.settings import SettingsError
from tests.support.clauses import covers

ONE = hashed("one")
TWO = hashed("two")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.touch(0o600)
    return path


class Told(list[str]):
    def __call__(self, text: str) -> None:
        self.append(text)


def test_tokens_are_long_different_and_recognisable() -> None:
    made = {mint() for _ in range(100)}
    assert len(made) == 100
    assert all(token.startswith("ctx_") and len(token) >= 47 and token.isascii() for token in made)


def test_a_file_is_owners_and_hashes_with_comments_and_blank_lines() -> None:
    text = f"# ours\n\nalice {ONE}\r\n  bob\t{TWO.upper().replace('SHA', 'sha')}  \n #{ONE}\nalice {ONE}"
    assert parse(text.encode(), "tokens") == {ONE: "alice", TWO: "bob"}


@pytest.mark.parametrize(
    ("line", "told"),
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
def test_a_line_that_is_none_is_refused_by_its_number_and_never_quoted(line: bytes, told: str) -> None:
    with pytest.raises(SettingsError) as problem:
        parse(b"# first\n\n" + line + b"\n", "tokens")
    assert str(problem.value).startswith(f"tokens, line 3: {told}")
    assert "\n" not in str(problem.value)
    assert "hush" not in str(problem.value)


@covers("folding.md#owner")
def test_one_token_cannot_be_two_owners() -> None:
    with pytest.raises(SettingsError, match="line 2: another owner has this very token"):
        parse(f"alice {ONE}\nbob {ONE}\n".encode(), "tokens")


@pytest.mark.parametrize("owner", ["", "a b", "-a", "a\n", "é", "a" * 65, "#a"])
def test_an_owner_has_a_plain_name(owner: str) -> None:
    with pytest.raises(SettingsError, match="an owner is"):
        check_owner(owner)


@covers("folding.md#owner")
def test_a_token_opens_for_its_owner_alone(path: Path) -> None:
    made = {owner: add(str(path), owner) for owner in ("alice", "bob", "a.b_c@d-e")}
    file = TokenFile(str(path), Told())
    assert {owner: file.owner_of(token) for owner, token in made.items()} == {owner: owner for owner in made}
    for guess in ("", "ctx_", made["bob"][:-1], hashed(made["bob"]), "x" * 100_000, "\udcff"):
        assert file.owner_of(guess) is None
    assert len(file) == 3


def test_no_token_is_in_the_file(path: Path) -> None:
    token = add(str(path), "alice")
    assert token not in path.read_text()
    assert token.removeprefix("ctx_") not in path.read_text()


def test_a_removed_line_shuts_out_at_once_and_an_added_one_lets_in(path: Path) -> None:
    file = TokenFile(str(path), Told())
    # The file is rewritten in place within one tick of the file system's clock, so its timestamp does not change.
    for turn in range(20):
        path.write_text(f"alice {ONE}\n" if turn % 2 else f"alice {TWO}\n")
        assert (file.owner_of("one"), file.owner_of("two")) == (("alice", None) if turn % 2 else (None, "alice"))
    path.write_text("")
    assert file.owner_of("two") is None


def test_a_file_put_in_the_place_of_an_old_one_is_noticed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # With this setting, timestamps are trusted from the first read on.
    monkeypatch.setattr(tokens, "SETTLED_AFTER_NS", -(10**12))
    path.write_text(f"alice {ONE}\n")
    settled = TokenFile(str(path), Told())
    assert settled.owner_of("one") == "alice"
    path.with_name("other").write_text(f"bob {ONE}\n")
    path.with_name("other").chmod(0o600)
    os.replace(path.with_name("other"), path)
    assert settled.owner_of("one") == "bob"


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda path: path.unlink(), "there is no "),
        (lambda path: path.write_text("nonsense\n"), "line 1: an entry has two words"),
        (lambda path: path.chmod(0o640), "chmod 600"),
        (lambda path: (path.unlink(), path.mkdir()), "is not a file"),
    ],
)
def test_while_the_file_is_not_in_order_nobody_is_let_in_and_it_is_told_once(
    path: Path, spoil: Callable[[Path], object], told: str
) -> None:
    path.write_text(f"alice {ONE}\n")
    heard = Told()
    file = TokenFile(str(path), heard)
    assert file.owner_of("one") == "alice"
    spoil(path)
    assert [file.owner_of("one") for _ in range(3)] == [None] * 3
    assert len(heard) == 1
    assert heard[0].startswith("no token is accepted: ")
    assert told in heard[0]
    if path.is_dir():
        path.rmdir()
    path.write_text(f"alice {ONE}\n")
    path.chmod(0o600)
    assert file.owner_of("one") == "alice"
    assert heard[1:] == [f"{path} is valid again"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o602, 0o604, 0o610])
def test_a_file_that_others_may_touch_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    with pytest.raises(SettingsError, match=f"chmod 600 {path}"):
        TokenFile(str(path), Told())
    with pytest.raises(SettingsError, match=f"chmod 600 {path}"):
        add(str(path), "alice")


def test_a_file_that_is_missing_a_pipe_or_endless_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="context token OWNER --token-file"):
        TokenFile(str(tmp_path / "none"), Told())
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(SettingsError, match="is not a file"):
        TokenFile(str(tmp_path / "pipe"), Told())
    with (tmp_path / "big").open("wb") as big:
        os.fchmod(big.fileno(), 0o600)
        big.truncate(FILE_MAX_BYTES + 1)
    with pytest.raises(SettingsError, match="more than 4 MiB"):
        TokenFile(str(tmp_path / "big"), Told())
