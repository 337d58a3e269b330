"""What people type, with what they get: help, habits, near misses and mistakes.

A mistake gives a line that says what is wrong, one that says what to do, and an exit code that is not 0.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from contextfold.cli.main import main
from tests.support.machine import ROOT

# Typed in this order, in a folder with `docs/`, an empty folder and an empty home. An ellipsis stands for any text.
HELP_AND_HABITS = """\
$ context
usage: contextfold COMMAND [options]        (`context` is the short form)
…
$ context fold
usage: context fold COMMAND [options]
…
$ context fold --help
usage: context fold COMMAND [options]
…
$ context help ask
usage: context ask [-h] [--cache DIR] [--cache-root DIR] [--budget N] …
…
$ context version
contextfold 0.1.0
$ context -V
contextfold 0.1.0
$ context build docs
$ context build --sources docs --cache docs.cache
$ context verify docs.cache
ok: 5 documents, sha256:…
$ context inspect docs.cache
{
  "cache_version": "sha256:…
$ context ask "roll back" --budget 4k
runbooks/rollback.md (lines 1-9)
why: 2 of 3 heading words, roll
…
$ context ask roll back --budget 4k --cache docs.cache --json
{"documents":[{"id":"runbooks/rollback.md",…
$ context get runbooks/Rollback.md --cache docs.cache
runbooks/rollback.md (lines 1-9)
…
$ context ls --cache docs.cache
document …
…
$ context install claude --dry-run
write …: our plugin, for http://localhost:9090
…
"""

NEAR_MISSES = """\
$ context status
error: invalid command line
reason: there is no command 'status' (did you mean `context fold status`?); see `context --help`
exit 1
$ context list
error: invalid command line
reason: there is no command 'list' (did you mean `context fold list`?); see `context --help`
exit 1
$ context fold savngs
error: invalid command line
reason: `context fold` has no command 'savngs' (did you mean savings?); see `context fold --help`
exit 1
$ context serve --prot 9100
error: invalid command line
reason: '--prot' is not known here (did you mean --port?); see `context serve --help`
exit 1
$ context service
error: invalid command line
reason: missing action (install, uninstall, start, stop, status); see `context service --help`
exit 1
"""

DOCUMENTS = """\
$ context resolve "roll back"
error: invalid command line
reason: missing --cache, --budget (`context ask QUESTION` finds the nearest cache and has a default budget); see …
exit 1
$ context resolve "roll back" --cache docs.cache --budget 4k
error: Budget is invalid
reason: '4k' is not a whole number; give a number of tokens such as 4000
exit 3
$ context build nothing-here
error: There is no such folder
reason: nothing-here is not a folder; give the folder that holds your documents
exit 6
$ context build empty
error: There are no documents to build a cache of
reason: empty has no file that is read as text; name another folder, or choose files with --include GLOB
exit 5
$ context build --sources docs --cache docs.cache
error: There is already something at the path of the cache
reason: docs.cache is already there; add --force to replace it, or choose another path
exit 6
$ context get nope.md --cache docs.cache
error: The cache has no such document
reason: the cache has no document 'nope.md'; `context ls` lists those it has
exit 2
$ context ask "roll back" --cache nowhere
error: Cache does not exist
reason: nowhere: there is nothing at that path; …
exit 4
$ context ask "xylophone" --cache docs.cache
Nothing in the cache matches.
[not in the cache: xylophone]
$ context ask "how do the" --cache docs.cache
The question has no words to search for; words such as `how` and `the` are not searched.
$ context ask "roll back" --cache docs.cache --budget 5
2 sections match, but none fits the budget.
$ context ask "roll back" --cache-root nothing-here
error: Cache does not exist
reason: nothing-here is not a folder; give the folder that has the caches
exit 4
$ context build docs --include "["
error: A source cannot be built into a cache
reason: '[' is not a pattern that a path below the folder can match; give one such as …
exit 5
"""

# Nothing was recorded yet, and nothing is installed.
SESSIONS = """\
$ context fold ls
error: Nothing has been recorded yet
reason: …/state.db is not there; `context run` and `context serve` make it, --store names another
exit 5
$ context fold show br_4c1d
error: Nothing has been recorded yet
…
exit 5
$ context run nosuchprogram
error: nosuchprogram is not on your PATH; install it, or give its path
exit 127
$ context uninstall claude-code --yes
note: nothing to do: Claude Code has nothing of contextfold
"""


def read_steps(transcript: str) -> list[tuple[str, str]]:
    """Each command of a transcript with its expected output."""
    steps = [step for step in re.split(r"^\$ ", transcript, flags=re.MULTILINE) if step]
    return [(command, expected) for command, _, expected in (step.partition("\n") for step in steps)]


def test_commands_as_people_type_them_give_the_output_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    shutil.copytree(ROOT / "examples" / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns(".context-cache"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "CONTEXT_STORE", "CONTEXT_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for command, expected in read_steps(HELP_AND_HABITS + NEAR_MISSES + DOCUMENTS + SESSIONS):
        code = main(shlex.split(command)[1:])
        out, err = (text.decode() for text in capfdbinary.readouterr())
        output = out + err + (f"exit {code}\n" if code else "")
        pattern = ".*".join(map(re.escape, expected.split("…")))
        assert re.fullmatch(pattern, output, re.DOTALL), f"{command}\n{output}"
