"""`context uninstall`: a host's configuration as it was before `context install`. Stdout is the difference made."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from contextfold.cli.agents.files import Change, ConfigFile, change_to, made, places, show
from contextfold.cli.output import tell_on_terminal
from contextfold.error_codes import EXIT_OK
from contextfold.hosts.config_files import Removal, Unfit, uninstall_hooks, uninstall_server
from contextfold.hosts.programs import SERVER, Host


def run(values: Mapping[str, str]) -> int:
    where = places(values)
    planned = [_change(ConfigFile(where.host, where.server), uninstall_server)]
    if where.hooks:
        planned.append(_change(ConfigFile(where.host, where.hooks), uninstall_hooks))
    changes = [change for change in planned if change.is_needed]
    if not changes:
        tell_on_terminal(f"nothing to do: {where.server} has no entry {SERVER}")
        return EXIT_OK
    if "dry-run" in values:
        show(changes)
        tell_on_terminal("nothing was changed; leave out --dry-run to do it")
        return EXIT_OK
    # The file that came last goes first: a folder may have been made for the other.
    for change in changes if made(changes, values, order=-1) else ():
        what = "was made by install, and is gone" if change.text is None else f"no longer has {SERVER}"
        tell_on_terminal(f"{change.file.path} {what}")
    return EXIT_OK


def _change(file: ConfigFile, uninstall: Callable[[Host, str], Removal]) -> Change:
    if file.text is None:
        return Change(file, None, 0)
    try:
        return change_to(file, uninstall(file.host, file.text))
    except Unfit as problem:
        raise file.refuse(problem) from problem
