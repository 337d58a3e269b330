"""`context install` for a running daemon: its address in one file, its hooks in another, and the removal of both."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.agents.random_json import configurations, hook_files
from tests.cli.agents.wiring import (
    EVENTS,
    FILES,
    KEYS,
    HostProject,
    comments_of,
    daemon_entry,
    hook_elements,
    parse_commented_json,
)
from tests.cli.fold.folds import Terminal
from tests.support.machine import COMMAND, Call, Ran, run_command


def with_hooks(value: dict[str, Any], elements: dict[str, Any]) -> dict[str, Any]:
    """The value of a hook file with our hooks added to it."""
    arrays = value.get("hooks", {})
    return value | {"hooks": arrays | {event: [element, *arrays.get(event, [])] for event, element in elements.items()}}


@pytest.mark.usefixtures("quick_disk")
class TestUninstallRestoresBothFiles:
    @given(data=st.data())
    def test_install_adds_server_and_hooks_once_and_uninstall_restores_every_byte(
        self, project: HostProject, data: st.DataObject
    ) -> None:
        text, value = data.draw(configurations(project.host))
        hooks_text, hooks = data.draw(hook_files(project.host))
        project.write(text)
        project.write_hooks(hooks_text)
        before = project.everything()
        assert project.install_daemon().code == 0
        installed = project.everything()
        key = KEYS[project.host]
        servers = {"contextfold": daemon_entry(project.host), **value.get(key, {})}
        assert parse_commented_json(project.text()) == value | {key: servers}
        assert [*parse_commented_json(project.text())[key]] == [*servers]
        assert comments_of(project.text()) == comments_of(text)
        assert parse_commented_json(project.hooks_text()) == with_hooks(hooks, hook_elements(project.host))
        assert comments_of(project.hooks_text()) == comments_of(hooks_text)
        assert project.install_daemon() == (0, b"", "")
        assert project.everything() == installed
        assert project.uninstall().code == 0
        assert project.everything() == before

    @given(data=st.data())
    def test_uninstall_restores_the_files_after_any_sequence_of_installs(
        self, project: HostProject, data: st.DataObject
    ) -> None:
        text, _ = data.draw(configurations(project.host))
        hooks_text, hooks = data.draw(hook_files(project.host))
        project.write(text)
        project.write_hooks(hooks_text)
        before = project.everything()
        option_lists: list[list[str]] = [
            ["--cache-root", str(project.caches)],
            [],
            ["--url", "https://ctx.example.org/team/mcp"],
            ["--url", "http://[::1]:9100", "--token-variable", "CONTEXT_TOKEN"],
        ]
        for options in data.draw(st.lists(st.sampled_from(option_lists), min_size=2, max_size=4)):
            assert project.install_daemon(*options).code == 0
            if "--cache-root" in options:
                assert parse_commented_json(project.hooks_text()) == hooks
        assert project.uninstall().code == 0
        assert project.everything() == before

    @pytest.mark.parametrize("options", [[], ["--token-variable", "T"], ["--url", "http://10.0.0.1"]])
    def test_created_files_are_removed_after_any_earlier_install(
        self, options: list[str], project: HostProject
    ) -> None:
        assert project.install_daemon(*options).code == 0
        direct = project.everything()
        assert project.uninstall().code == 0
        assert project.everything() == {}
        for earlier_options in ([], ["--url", "https://elsewhere"], ["--cache-root", str(project.caches)]):
            assert project.install_daemon(*earlier_options).code == 0
            assert project.install_daemon(*options).code == 0
            if project.host != "cursor" or "--cache-root" not in earlier_options:
                assert project.everything() == direct
            assert project.uninstall().code == 0
            assert project.everything() == {}

    def test_a_new_executable_replaces_the_old_one(self, project: HostProject) -> None:
        project.install_daemon()
        installed = project.everything()
        project.write_hooks(project.hooks_text().replace(str(COMMAND), "'/with space/context'"))
        assert project.install_daemon().code == 0
        assert project.everything() == installed

    def test_installing_without_a_token_removes_the_token_variable(self, project: HostProject) -> None:
        project.install_daemon()
        without = project.everything()
        project.install_daemon("--token-variable", "CONTEXT_TOKEN")
        assert project.everything() != without
        project.install_daemon()
        assert project.everything() == without

    def test_hooks_of_others_in_the_same_arrays_remain(self, project: HostProject) -> None:
        project.install_daemon()
        theirs = {"command": "theirs"} if project.host == "cursor" else {"hooks": [{"type": "command", "command": "x"}]}
        value = json.loads(project.hooks_text())
        for array in value["hooks"].values():
            array.insert(0, theirs)
        project.write_hooks(json.dumps(value))
        assert project.uninstall().code == 0
        left = json.loads(project.hooks_text())["hooks"]
        assert left == {event: [theirs] for event in EVENTS[project.host]}

    @pytest.mark.parametrize(
        ("host", "text"),
        [
            ("claude-code", '{"hooks": {}}'),
            ("claude-code", '{"hooks": { }}\n'),
            ("claude-code", '{"hooks": {"PostToolUse": []}}'),
            ("claude-code", "{}"),
            ("cursor", '{\n  "version": 1\n}\n'),
            ("cursor", '{\n  "version": 1,\n  "hooks": {}\n}\n'),
            ("cursor", '{"hooks": {}, "version": 1}'),
        ],
    )
    def test_files_without_hooks_are_restored(
        self, host: str, text: str, tmp_path: Path, call: Call, caches: Path
    ) -> None:
        project = HostProject(tmp_path, host, call, caches)
        project.write_hooks(text)
        assert project.install_daemon().code == 0
        assert parse_commented_json(project.hooks_text()) == with_hooks(json.loads(text), hook_elements(host))
        assert project.uninstall().code == 0
        assert project.hooks_text() == text


class TestContents:
    @pytest.mark.parametrize(
        ("argv", "url", "variable"),
        [
            ([], "http://localhost:9090", ""),
            (["--url", "http://localhost:9090/mcp/"], "http://localhost:9090", ""),
            (["--url", "https://ctx.example.org/a-b/c/"], "https://ctx.example.org/a-b/c", ""),
            (["--token-variable", "CONTEXT_TOKEN"], "http://localhost:9090", "CONTEXT_TOKEN"),
        ],
    )
    def test_server_and_hooks_have_the_form_that_the_host_documents(
        self, argv: list[str], url: str, variable: str, project: HostProject
    ) -> None:
        assert project.install_daemon(*argv).code == 0
        key, host = KEYS[project.host], project.host
        assert json.loads(project.text()) == {key: {"contextfold": daemon_entry(host, url, variable)}}
        version = {"version": 1} if host == "cursor" else {}
        arrays = {event: [element] for event, element in hook_elements(host, url, variable).items()}
        assert json.loads(project.hooks_text()) == {**version, "hooks": arrays}

    def test_the_value_of_the_token_is_written_to_no_file(self, tmp_path: Path) -> None:
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CONTEXT_TOKEN": "ctx_secret"}
        for host in FILES:
            argv = ("install", host, "--token-variable", "CONTEXT_TOKEN")
            assert run_command(*argv, env=env, cwd=tmp_path).code == 0
        for path in tmp_path.rglob("*"):
            assert not path.is_file() or b"ctx_secret" not in path.read_bytes()

    def test_new_hooks_are_indented_like_the_rest_of_the_file(self, tmp_path: Path, call: Call, caches: Path) -> None:
        project = HostProject(tmp_path, "claude-code", call, caches)
        project.write_hooks('{\r\n\t"hooks": {\r\n\t\t"Stop": [\r\n\t\t\t{"hooks": []}\r\n\t\t]\r\n\t}\r\n}')
        project.install_daemon()
        assert "\n" not in project.hooks_text().replace("\r\n", "")
        assert '\r\n\t\t\t{\r\n\t\t\t\t"hooks": [\r\n\t\t\t\t\t{\r\n' in project.hooks_text()

    def test_cursors_hooks_can_be_installed_for_a_user(self, tmp_path: Path) -> None:
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        assert run_command("install", "cursor", "--user", env=env, cwd=tmp_path).code == 0
        assert sorted(path.name for path in (tmp_path / ".cursor").iterdir()) == ["hooks.json", "mcp.json"]
        assert run_command("uninstall", "cursor", "--user", env=env, cwd=tmp_path).code == 0
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]

    def test_dry_run_and_install_show_the_same_difference_of_all_files(self, project: HostProject) -> None:
        dry_run = project.install_daemon("--dry-run")
        assert project.everything() == {}
        installed = project.install_daemon()
        assert (installed.code, installed.out) == (0, dry_run.out)
        assert [line for line in installed.out.decode().splitlines() if line.startswith("+++ ")] == [
            f"+++ {project.file}",
            f"+++ {project.hooks}",
            *([f"+++ {project.skill}"] if project.host == "claude-code" else []),
        ]
        assert project.uninstall("--dry-run").out == project.uninstall().out


class TestConfirmation:
    """On a terminal a person sees the difference and confirms it before anything is changed."""

    @pytest.mark.parametrize(
        ("answer", "is_confirmed"), [("y\n", True), ("yes\n", True), ("\n", False), ("n\n", False)]
    )
    def test_install_shows_the_difference_and_asks_first(
        self, project: HostProject, answer: str, is_confirmed: bool
    ) -> None:
        before = project.everything()
        terminal = Terminal("install", project.host, "--project", project.folder)
        shown = terminal.until("Change this? [y/N]")
        assert "+" in shown
        assert "contextfold" in shown
        assert project.everything() == before
        terminal.type(answer)
        code, output = terminal.finish()
        assert code == 0
        assert (project.everything() != before) == is_confirmed
        assert ("nothing was changed" in output) != is_confirmed

    def test_yes_skips_the_question(self, project: HostProject) -> None:
        code, output = Terminal("install", project.host, "--project", project.folder, "--yes").finish()
        assert code == 0
        assert "[y/N]" not in output
        assert "+" in output

    def test_uninstall_asks_first(self, project: HostProject) -> None:
        Terminal("install", project.host, "--project", project.folder, "--yes").finish()
        installed_files = project.everything()
        terminal = Terminal("uninstall", project.host, "--project", project.folder)
        terminal.until("Change this? [y/N]")
        assert project.everything() == installed_files
        terminal.type("y\n")
        assert terminal.finish()[0] == 0
        assert project.everything() != installed_files


class TestInvalidArguments:
    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (["claude-desktop", "--url", "http://localhost:9090"], "Claude Desktop only starts servers itself"),
            (["claude-desktop", "--token-variable", "T"], "--token-variable is not for claude-desktop"),
            (["cursor", "--url", "http://a", "--stdio"], "--url is for the daemon"),
            (["cursor", "--token-variable", "T", "--cache-root", "/"], "--token-variable is for the daemon"),
            (["cursor", "--token-variable", "ctx-12"], "a variable's name"),
            (["cursor", "--token-variable", ""], "a variable's name"),
            (["cursor", "--url", "localhost:9090"], "it must be like http://localhost:9090"),
            (["cursor", "--url", ""], "it must be like"),
            (["cursor", "--url", "ftp://localhost"], "it must be like"),
            (["cursor", "--url", "http://me:secret@localhost"], "--token-variable NAME"),
            (["cursor", "--url", "http://localhost:0"], "it must be like"),
            (["cursor", "--url", "http://localhost:65536"], "it must be like"),
            (["cursor", "--url", "http://a/b?c"], "it must be like"),
            (["cursor", "--url", "http://a/../b"], "it must be like"),
            (["cursor", "--url", "http://a/$(touch${IFS}x)"], "it must be like"),
            (["cursor", "--url", "http://a\nb"], "it must be like"),
            (["cursor", "--url", "http://[::1"], "it must be like"),
            (["cursor", "--url", "http://" + "a" * 3000], "it must be like"),
        ],
    )
    def test_invalid_urls_and_variables_are_an_error(self, argv: list[str], message: str, tmp_path: Path) -> None:
        ran = run_command("install", *argv, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)}, cwd=tmp_path)
        assert (ran.code, ran.out) == (1, b"")
        assert message in ran.err
        assert "secret" not in ran.err
        assert list(tmp_path.iterdir()) == []


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ('{"version": 1, "hooks": ', "it is not JSON"),
            ("[]", "top level is not an object"),
            ('{"version": 1, "hooks": []}', "hooks is not an object"),
            ('{"version": 1, "hooks": null}', "hooks is not an object"),
            ('{"version": 1, "hooks": {"EVENT": {}}}', "hooks for EVENT are not a list"),
            ('{"version": 1, "hooks": {"EVENT": [], "EVENT": []}}', "EVENT more than once"),
            ('{"version": 1, "hooks": {}, "hooks": {}}', "hooks more than once"),
        ],
    )
    def test_hooks_that_cannot_be_edited_safely_leave_both_files_unchanged(
        self, text: str, message: str, project: HostProject
    ) -> None:
        event = EVENTS[project.host][-1]
        project.write("{}")
        project.write_hooks(text.replace("EVENT", event))
        before = project.everything()
        for ran in (project.install_daemon(), project.install_daemon("--force")):
            assert (ran.code, ran.out) == (6, b"")
            assert f"{project.hooks} is left as it is" in ran.err
            assert message.replace("EVENT", event) in ran.err
        assert project.everything() == before
        # This command does not touch hooks.
        assert project.install().code == 0
        assert project.uninstall().code == 0
        assert project.everything() == before

    def test_hooks_that_became_invalid_leave_both_files_unchanged(self, project: HostProject) -> None:
        project.install_daemon()
        project.write_hooks(project.hooks_text().rstrip()[:-1])
        before = project.everything()
        for ran in (project.uninstall(), project.install(), project.install_daemon("--url", "http://other")):
            assert (ran.code, ran.out) == (6, b"")
            assert "it is not JSON" in ran.err
        assert project.everything() == before

    def test_an_invalid_server_file_leaves_the_hooks_unchanged(self, project: HostProject) -> None:
        project.write("{")
        assert project.install_daemon().code == 6
        assert not project.hooks.exists()

    def test_cursors_hooks_without_a_version_are_refused(self, tmp_path: Path, call: Call, caches: Path) -> None:
        project = HostProject(tmp_path, "cursor", call, caches)
        project.write_hooks("{}")
        ran = project.install_daemon()
        assert (ran.code, project.hooks_text()) == (6, "{}")
        assert '"version": 1' in ran.err

    def test_comments_in_claude_codes_settings_are_refused(self, tmp_path: Path, call: Call, caches: Path) -> None:
        project = HostProject(tmp_path, "claude-code", call, caches)
        project.write_hooks("{} // mine")
        assert project.install_daemon().code == 6
        assert not project.file.exists()

    def test_a_folder_instead_of_a_hook_file_is_an_error_before_anything_is_written(self, project: HostProject) -> None:
        project.hooks.mkdir(parents=True)
        ran = project.install_daemon()
        assert ran.code == 6
        assert f"{project.hooks} is not a file" in ran.err
        assert not project.file.exists()
        assert "is not known" in project.install().err


class TestEditedHooks:
    @pytest.fixture
    def edited(self, project: HostProject) -> HostProject:
        """An installed project in which the last event's hook has another timeout."""
        project.install_daemon()
        head, five, tail = project.hooks_text().rpartition('"timeout": 5')
        assert five
        project.write_hooks(head + '"timeout": 50' + tail)
        return project

    def test_edited_hooks_that_still_work_remain(self, project: HostProject) -> None:
        project.install_daemon()
        project.write_hooks(project.hooks_text().replace('"timeout": 5', '"x": [], "timeout": 5'))
        assert project.install_daemon() == (0, b"", "")

    def test_edited_hooks_are_replaced_only_with_force_and_are_then_removable(self, edited: HostProject) -> None:
        before = edited.everything()
        refused = edited.install_daemon("--url", "http://other:1")
        assert (refused.code, refused.out) == (6, b"")
        assert "--force" in refused.err
        assert edited.everything() == before
        assert edited.install_daemon("--url", "http://other:1", "--force").code == 0
        assert edited.uninstall().code == 0
        assert edited.everything() == {}

    def test_uninstall_refuses_edited_hooks_and_changes_nothing(self, edited: HostProject) -> None:
        before = edited.everything()
        ran = edited.uninstall()
        assert (ran.code, ran.out) == (6, b"")
        assert f"its hook for {EVENTS[edited.host][-1]} is not as install wrote it" in ran.err
        assert edited.everything() == before

    @pytest.mark.parametrize("key", ["hooks", "PostToolUse"])
    def test_a_comment_between_a_key_and_our_hook_remains(self, key: str, vscode: HostProject) -> None:
        vscode.install_daemon()
        vscode.write_hooks(vscode.hooks_text().replace(f'"{key}":', f'"{key}": /* mine */'))
        assert vscode.uninstall().code == 0
        assert "/* mine */" in vscode.hooks_text()
        assert "context hook" not in vscode.hooks_text()

    def test_a_duplicate_hook_is_reported_and_removed_twice(self, project: HostProject) -> None:
        project.install_daemon()
        value = json.loads(project.hooks_text())
        for array in value["hooks"].values():
            array.extend(array[:])
        project.write_hooks(json.dumps(value))
        assert "more than once" in project.install_daemon().err
        assert project.uninstall().code == 0
        assert not any(json.loads(project.hooks_text()).get("hooks", {}).values())

    def test_a_similar_command_of_somebody_else_remains(self, project: HostProject) -> None:
        theirs: dict[str, object] = {"type": "command", "command": f"git hook {project.host}-lint"}
        element = {"hooks": [theirs]} if project.host == "claude-code" else theirs
        project.write_hooks(json.dumps({"version": 1, "hooks": {EVENTS[project.host][0]: [element]}}))
        before = project.everything()
        assert project.install_daemon().code == 0
        assert project.uninstall().code == 0
        assert {path: text for path, text in project.everything().items() if path in before} == before


class TestAllOrNothing:
    @pytest.fixture
    def full_disk(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The second file that is renamed or removed fails with a full disk."""
        calls: list[object] = []

        def fail_second_call(name: str) -> None:
            real = getattr(os, name)

            def fail_on_second(*arguments: Any) -> None:
                if b"contextfold-new" not in os.fsencode(arguments[0]) or name == "rename":
                    calls.append(arguments)
                    if len(calls) == 2:
                        raise OSError(28, "No space left on device")
                real(*arguments)

            monkeypatch.setattr(os, name, fail_on_second)

        fail_second_call("rename")
        fail_second_call("unlink")

    @pytest.mark.usefixtures("full_disk")
    def test_if_the_second_file_cannot_be_written_the_first_is_restored(self, project: HostProject) -> None:
        project.write('{"a": 1}')
        project.file.chmod(0o640)
        before = project.everything()
        ran = project.install_daemon()
        assert (ran.code, ran.out) == (6, b"")
        assert "free some space" in ran.err
        assert project.everything() == before
        assert stat.S_IMODE(project.file.stat().st_mode) == 0o640

    @pytest.mark.usefixtures("full_disk")
    def test_if_the_second_file_cannot_be_written_a_new_first_file_is_removed(self, project: HostProject) -> None:
        assert project.install_daemon().code == 6
        assert project.everything() == {}

    def test_if_the_second_file_cannot_be_removed_the_first_is_restored(
        self, project: HostProject, request: pytest.FixtureRequest
    ) -> None:
        project.install_daemon()
        project.hooks.chmod(0o600)
        before = project.everything()
        request.getfixturevalue("full_disk")
        ran = project.uninstall()
        assert (ran.code, ran.out) == (6, b"")
        assert project.everything() == before
        assert stat.S_IMODE(project.hooks.stat().st_mode) == 0o600

    def test_a_read_only_second_file_is_an_error_before_the_first_is_written(self, project: HostProject) -> None:
        project.write("{}")
        project.write_hooks('{"version": 1}')
        project.hooks.chmod(0o444)
        before, file = project.everything(), project.file.stat()
        ran: Ran = project.install_daemon()
        assert (ran.code, ran.out) == (6, b"")
        assert f"{project.hooks} is read-only" in ran.err
        assert project.everything() == before
        assert os.path.samestat(project.file.stat(), file)
