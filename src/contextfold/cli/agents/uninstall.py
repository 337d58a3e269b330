"""`context uninstall`: removes everything that `context install` added. Prints the difference of the files."""

from __future__ import annotations

import os
from collections.abc import Mapping

from contextfold.cli.agents.files import ConfigFile, FileChange, confirm_and_make, edited, files_of, show
from contextfold.cli.agents.install import skill_text
from contextfold.cli.output import plain, print_note, print_on_terminal
from contextfold.error_codes import EXIT_OK
from contextfold.hosts.config_files import uninstall_hooks, uninstall_server
from contextfold.hosts.programs import SERVER


def run(values: Mapping[str, str]) -> int:
    wanted = files_of(values)
    planned = [edited(ConfigFile(wanted.server), lambda text: uninstall_server(wanted.host, text))]
    if wanted.hooks:
        planned.append(edited(ConfigFile(wanted.hooks), lambda text: uninstall_hooks(wanted.host, text)))
    if wanted.skill:
        planned.append(_without_skill(ConfigFile(wanted.skill)))
    changes = [change for change in planned if change.is_needed]
    if not changes:
        print_note(f"nothing to do: {plain(wanted.server)} has no entry {SERVER}")
        return EXIT_OK
    if "dry-run" in values:
        show(changes)
        print_on_terminal("nothing was changed; leave out --dry-run to do it")
        return EXIT_OK
    for change in changes if confirm_and_make(changes, values) else ():
        what = "was created by install and is removed" if change.text is None else f"no longer has {SERVER}"
        print_on_terminal(f"{change.file.path} {what}")
        if change.text is None:
            _remove_empty_folders(os.path.dirname(change.file.path), wanted.project or os.path.expanduser("~"))
    return EXIT_OK


def _remove_empty_folders(folder: str, root: str) -> None:
    """Install made the folders of its files, so those that are empty again go with them; never the root itself."""
    while folder.startswith(os.path.join(root, "")):
        try:
            os.rmdir(folder)
        except OSError:
            return
        folder = os.path.dirname(folder)


def _without_skill(file: ConfigFile) -> FileChange:
    if file.text is not None and file.text != skill_text():
        print_note(f"{plain(file.path)} is not the skill that install wrote; remove it by hand if it is to go")
        return FileChange(file, file.text)
    return FileChange(file, None)
