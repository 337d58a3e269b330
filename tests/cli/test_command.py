"""The `context` command: exit codes, messages on stderr, bytes on stdout."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from argparse import SUPPRESS
from pathlib import Path

import pytest

from contextfold.cli.commands import COMMANDS
from contextfold.settings import SETTINGS
from tests.support.machine import COMMAND, Call, read_terminal, run_command, write_files

QUESTION = ("--query", "guide", "--budget", "4000")


class TestResolve:
    @pytest.mark.parametrize(
        "budget", ["", "+", "-1", "-0", "1.0", "1e3", "0x10", "1_000", " 5", "5 ", "٣", "１", "++1", "abc", "--cache"]
    )
    def test_a_budget_that_is_not_a_whole_number_is_exit_3(self, budget: str, cache: Path, call: Call) -> None:
        for argv in (["--budget", budget], [f"--budget={budget}"]):
            ran = call("resolve", "--cache", cache, "--query", "q", *argv)
            assert (ran.code, ran.out) == (3, b"")
            assert ran.err.startswith("error: Budget is invalid\nreason: ")

    @pytest.mark.parametrize("budget", [2**63, 10**30, "9" * 5000])
    def test_a_budget_above_the_maximum_is_exit_3(self, budget: int | str, cache: Path, call: Call) -> None:
        assert call("resolve", "--cache", cache, "--query", "q", "--budget", budget).code == 3

    @pytest.mark.parametrize(
        ("text", "budget"), [("0", 0), ("+5", 5), ("007", 7), ("0" * 5000 + "9", 9), (str(2**63 - 1), 2**63 - 1)]
    )
    def test_a_whole_number_is_accepted_as_budget(self, text: str, budget: int, cache: Path, call: Call) -> None:
        ran = call("resolve", "--cache", cache, "--query", "q", "--budget", text)
        assert json.loads(ran.out)["selection"]["budget"] == budget

    def test_budget_0_selects_nothing_and_excludes_everything(self, cache: Path, call: Call) -> None:
        selection = json.loads(call("resolve", "--cache", cache, "--query", "guide", "--budget", 0).out)["selection"]
        assert (selection["documents_selected"], selection["documents_excluded_by_budget"]) == (0, 3)

    def test_a_query_that_is_not_utf_8_is_exit_2(self, cache: Path) -> None:
        ran = run_command("resolve", "--cache", cache, "--query", b"caf\xe9", "--budget", "5")
        assert (ran.code, ran.out) == (2, b"")
        assert ran.err.startswith("error: Query is invalid\nreason: ")

    @pytest.mark.parametrize("query", ["-x", "--help", "--budget", "-", "", "=", "a=b", "--query=x"])
    def test_a_query_may_look_like_an_option(self, query: str, cache: Path, call: Call) -> None:
        ran = call("resolve", "--cache", cache, "--query", query, "--budget", 9)
        assert json.loads(ran.out)["selection"]["query"] == query

    @pytest.mark.parametrize("target", ["nothing", "file", "below a file", "dangling link", "loop", "n" * 300])
    def test_a_path_that_is_no_folder_is_exit_4(self, target: str, tmp_path: Path, call: Call) -> None:
        (tmp_path / "file").write_text("x")
        (tmp_path / "dangling link").symlink_to("nowhere")
        (tmp_path / "loop").symlink_to("loop")
        path = tmp_path / "file" / "x" if target == "below a file" else tmp_path / target
        for command in (["resolve", *QUESTION], ["inspect"], ["verify"]):
            ran = call(command[0], "--cache", path, *command[1:])
            assert (ran.code, ran.out) == (4, b"")
            assert ran.err.startswith("error: Cache does not exist\nreason: ")
            assert str(path) in ran.err
            assert "context build" in ran.err

    def test_pretty_output_has_the_same_values_indented_by_two_spaces(self, cache: Path, call: Call) -> None:
        compact = call("resolve", "--cache", cache, *QUESTION).out
        pretty = call("resolve", "--cache", cache, *QUESTION, "--format", "pretty").out
        assert json.loads(pretty) == json.loads(compact)
        assert pretty == json.dumps(json.loads(compact), indent=2, ensure_ascii=False).encode() + b"\n"
        assert compact.count(b"\n") == 1

    def test_every_spelling_of_the_cache_path_gives_the_same_output(self, cache: Path) -> None:
        expected = run_command("resolve", "--cache", cache, *QUESTION)
        assert expected.code == 0
        for path in (f"{cache.name}/", f"./{cache.name}//", f"{cache}/../{cache.name}"):
            assert run_command("resolve", "--cache", path, *QUESTION, cwd=cache.parent) == expected

    def test_environment_variables_do_not_change_the_answer(self, cache: Path) -> None:
        expected = run_command("resolve", "--cache", cache, *QUESTION)
        noise = {
            "CONTEXT_CACHE_ROOT": "/nowhere",
            "CONTEXT_TOOL_TIMEOUT_SECS": "0",
            "COLUMNS": "1",
            "NO_COLOR": "1",
            "TZ": "Asia/Tokyo",
        }
        env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **noise}
        assert run_command("resolve", "--cache", cache, *QUESTION, env=env) == expected


class TestInspectAndVerify:
    def test_inspect_prints_version_count_size_and_validity(self, cache: Path, call: Call) -> None:
        ran = call("inspect", "--cache", cache)
        total = sum(path.stat().st_size for path in (cache / "documents").iterdir())
        version = json.loads((cache / "manifest.json").read_text())["cache_version"]
        expected = {"cache_version": version, "document_count": 3, "total_bytes": total, "valid": True}
        assert ran.out == json.dumps(expected, indent=2).encode() + b"\n"

    @pytest.mark.parametrize("file", ["index.json", "documents/19835fc46fd4.json"])
    def test_inspect_reports_an_invalid_cache_if_its_manifest_parses(self, file: str, cache: Path, call: Call) -> None:
        (cache / file).write_text("broken")
        ran = call("inspect", "--cache", cache)
        assert ran.code == 0
        assert json.loads(ran.out)["valid"] is False

    @pytest.mark.parametrize("replacement", ["nothing", "folder", "link"])
    def test_inspect_counts_only_the_document_files_that_exist(self, replacement: str, cache: Path, call: Call) -> None:
        size_before = json.loads(call("inspect", "--cache", cache).out)["total_bytes"]
        document = cache / "documents" / "19835fc46fd4.json"
        size = document.stat().st_size
        document.unlink()
        if replacement == "folder":
            document.mkdir()
        if replacement == "link":
            document.symlink_to("nowhere")
        assert json.loads(call("inspect", "--cache", cache).out)["total_bytes"] == size_before - size

    @pytest.mark.parametrize("text", ["", "{}", "[]", '{"cache_version": 1}'])
    def test_inspect_of_a_malformed_manifest_is_exit_5(self, text: str, cache: Path, call: Call) -> None:
        (cache / "manifest.json").write_text(text)
        ran = call("inspect", "--cache", cache)
        assert (ran.code, ran.out) == (5, b"")

    def test_verify_of_a_valid_cache_prints_ok(self, cache: Path, call: Call) -> None:
        ran = call("verify", "--cache", cache)
        assert ran.code == 0
        assert ran.out.startswith(b"ok: 3 documents, sha256:")
        assert ran.err == ""

    def test_verify_notes_that_resolve_must_read_every_file(self, cache: Path, call: Call) -> None:
        os.utime(cache / "index.json")
        ran = call("verify", "--cache", cache)
        assert ran.code == 0
        assert ran.err.startswith("note: ")

    def test_verify_reads_the_files_and_trusts_no_timestamp(self, cache: Path) -> None:
        """The content changes without a new timestamp, as on a failing disk."""
        script = f"""
import os, sys
from contextfold.resolve import cache, files
real = files.read_regular
damaged = b"19835fc46fd4.json"
cache.read_regular = lambda path: real(path).replace(b"guide.", b"guide!") if path.endswith(damaged) else real(path)
from contextfold.cli.main import main
sys.exit(main(["verify", "--cache", {str(cache)!r}]))
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert done.returncode == 5
        assert "19835fc46fd4.json: its content does not hash to its version" in done.stderr


class TestUsage:
    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (["reslove"], "did you mean resolve?"),
            (["resolve"], "missing --cache, --query, --budget"),
            (["resolve", "--cach", "x"], "did you mean --cache?"),
            (["inspect", "a", "--cache", "b"], "--cache is given twice"),
            (["serve", "stray"], "'stray' is not known here"),
            (["fold", "lst"], "did you mean list?"),
            (["install", "claud-code"], "did you mean claude-code?"),
            (["help", "fold", "nothing"], "`context fold` has no command"),
            (["resolve", "--budget"], "--budget needs a value"),
            (["resolve", "--cache", "a", "--cache", "b"], "--cache is given twice"),
            (["resolve", "--cache", "a", *QUESTION, "--format", "xml"], "--format is one of json, pretty"),
            (["build", "--force=yes"], "--force takes no value"),
            (["build", "--cache", "c"], "missing --sources"),
            (["completion"], "missing shell"),
            (["completion", "tcsh"], "shell is one of bash, zsh, fish"),
            (["help", "reslove"], "did you mean resolve?"),
            (["--verison"], "see `context --help`"),
        ],
    )
    def test_invalid_command_lines_are_exit_1_with_a_reason(self, argv: list[str], message: str, call: Call) -> None:
        ran = call(*argv)
        assert (ran.code, ran.out) == (1, b"")
        assert ran.err.startswith("error: ")
        assert message in ran.err
        assert "--help" in ran.err

    def test_help_has_examples_and_exit_codes_for_every_command(self, call: Call) -> None:
        overview = call("--help")
        assert overview.code == 0
        for command in COMMANDS:
            words = command.name.split()
            page = call(*words, "--help")
            assert page.code == 0
            assert call("help", *words) == page
            assert f"  {command.name}" in overview.out.decode()
            parser = command.parser()
            for argument in parser.arguments:
                assert argument.help == SUPPRESS or all(name in page.out.decode() for name in argument.option_strings)
            for needed in ("usage: context", "examples:", "exit codes:", *parser.examples):
                assert needed in page.out.decode()
            assert max(map(len, page.out.decode().splitlines())) <= 100

    @pytest.mark.parametrize("argv", [[], ["-h"], ["--help"], ["help"]])
    def test_context_without_arguments_and_help_show_the_overview(self, argv: list[str], call: Call) -> None:
        ran = call(*argv)
        assert (ran.code, ran.err) == (0, "")
        assert ran.out.startswith(b"usage: contextfold COMMAND")

    @pytest.mark.parametrize("argv", [["fold"], ["fold", "--help"], ["fold", "-h"], ["help", "fold"], ["fold", "help"]])
    def test_a_group_without_a_command_lists_its_commands(self, argv: list[str], call: Call) -> None:
        ran = call(*argv)
        assert (ran.code, ran.err) == (0, "")
        assert all(command.name in ran.out.decode() for command in COMMANDS if command.group == "fold")

    def test_help_settings_lists_every_setting(self, call: Call) -> None:
        ran = call("help", "settings")
        assert ran.code == 0
        assert all(setting.variable in ran.out.decode() for setting in SETTINGS.values())

    def test_the_main_argument_may_be_given_without_its_option(self, cache: Path, call: Call) -> None:
        assert call("inspect", cache) == call("inspect", "--cache", cache)
        assert call("verify", cache) == call("verify", "--cache", cache)
        by_word = call("resolve", "guide", "--cache", cache, "--budget", "4000")
        assert by_word == call("resolve", "--cache", cache, *QUESTION)

    def test_it_runs_as_a_python_module(self, cache: Path) -> None:
        argv = ["resolve", "--cache", str(cache), *QUESTION]
        done = subprocess.run([sys.executable, "-m", "contextfold", *argv], capture_output=True, check=True)
        assert done.stdout == run_command(*argv).out

    def test_an_unexpected_exception_is_exit_7_without_a_traceback(
        self, cache: Path, call: Call, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from contextfold.resolve.service import Cache

        def fail(*_: object) -> None:
            raise ZeroDivisionError("oops")

        monkeypatch.setattr(Cache, "resolve", fail)
        ran = call("resolve", "--cache", cache, *QUESTION)
        assert (ran.code, ran.out) == (7, b"")
        assert "ZeroDivisionError: oops" in ran.err
        assert "Traceback" not in ran.err


class TestStreams:
    def shell(self, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)

    def resolve(self, cache: Path) -> str:
        return f"{COMMAND} resolve --cache {cache} --query guide --budget 4000"

    def test_a_full_stdout_is_an_io_error(self, cache: Path) -> None:
        ran = self.shell(f"{self.resolve(cache)} > /dev/full")
        assert ran.returncode == 6
        assert "No space left on device" in ran.stderr
        assert "Exception" not in ran.stderr

    @pytest.fixture
    def resolve_big(self, tmp_path: Path, call: Call) -> str:
        """A command that prints a document of more than a megabyte."""
        write_files(tmp_path / "docs", {"big.md": "guide " * 200_000})
        assert call("build", "--sources", tmp_path / "docs", "--cache", tmp_path / "c").code == 0
        return self.resolve(tmp_path / "c").replace("4000", "4000000")

    def test_a_reader_that_closes_the_pipe_early_causes_no_traceback(self, resolve_big: str) -> None:
        ran = self.shell(f"{resolve_big} | head -c 5; echo ${{PIPESTATUS[0]}}")
        assert ran.stdout == '{"doc6\n'
        assert "Traceback" not in ran.stderr
        assert "Exception ignored" not in ran.stderr

    @pytest.mark.parametrize("unbuffered", ["", "1"])
    def test_a_non_blocking_pipe_gets_every_byte(self, unbuffered: str, resolve_big: str) -> None:
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
        process = subprocess.Popen(resolve_big.split(), stdout=write_end, env=env)
        os.close(write_end)
        with open(read_end, "rb") as pipe:
            received = b"".join(iter(lambda: pipe.read(50_000), b""))
        assert process.wait() == 0
        assert json.loads(received)["documents"][0]["content"] == "guide " * 200_000

    @pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
    def test_closed_streams_cause_no_traceback(self, closed: str, cache: Path) -> None:
        ran = self.shell(f"{self.resolve(cache)} {closed}")
        assert ran.returncode == (6 if ">&-" in closed.replace("2>&-", "") else 0)
        assert "Traceback" not in ran.stderr

    def test_a_long_build_shows_progress_on_a_terminal_and_is_silent_in_a_pipe(self, tmp_path: Path) -> None:
        docs = write_files(tmp_path / "docs", {f"{n}.md": f"word{n} " * 300 for n in range(1200)})
        silent = run_command("build", "--sources", docs, "--cache", tmp_path / "piped")
        assert silent == (0, b"", "")
        terminal, stderr = pty.openpty()
        argv: list[str | Path] = [COMMAND, "build", "--sources", docs, "--cache", tmp_path / "watched"]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=stderr)
        os.close(stderr)
        output = read_terminal(terminal)
        assert process.communicate()[0] == b""
        assert process.returncode == 0
        assert "of 1,200 documents (" in output
        assert output.rstrip().splitlines()[-1].split("\x1b[K")[-1].startswith("built ")
