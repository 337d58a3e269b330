"""`context install`: a host's configuration gets our server, and our hooks where a daemon is there to hear them. Stdout
is the difference made.
"""

from __future__ import annotations

from collections.abc import Mapping

from contextfold.cli.agents.files import (
    Change,
    ConfigFile,
    Places,
    cache_root,
    change_to,
    executable,
    made,
    places,
    show,
)
from contextfold.cli.output import note, plain, tell_on_terminal
from contextfold.cli.parse import UsageError
from contextfold.common.network_address import DAEMON_URL, BadAddress, address_from, is_variable
from contextfold.error_codes import EXIT_OK
from contextfold.errors import StorageFailed
from contextfold.hosts.config_files import (
    Unfit,
    install_hooks,
    install_server,
    is_foreign,
    new_hooks_file,
    new_server_file,
    uninstall_hooks,
)
from contextfold.hosts.programs import HOSTS, SERVER, Daemon, Host, Stdio, Wiring, shell_word


def run(values: Mapping[str, str]) -> int:
    wiring = _wiring(HOSTS[values["host"]], values)
    where = places(values)
    force = "force" in values
    server = ConfigFile(where.host, where.server)
    planned = [_server_change(server, wiring, force=force), *_hooks_changes(where, wiring, force=force)]
    changes = [change for change in planned if change.is_needed]
    if server.text is not None and is_foreign(where.host, server.text, wiring):
        note(f"the entry {SERVER} in {plain(server.path)} was not install's; uninstall cannot bring it back")
    if not changes:
        tell_on_terminal(f"nothing to do: {server.path} has the entry {SERVER} already")
    elif "dry-run" in values:
        show(changes)
        tell_on_terminal("nothing was changed; leave out --dry-run to do it")
    elif made(changes, values):
        told = " and ".join(change.file.path for change in planned if change.text is not None)
        tell_on_terminal(f"{SERVER} is in {told}; {where.host.after}")
    return EXIT_OK


def _wiring(host: Host, values: Mapping[str, str]) -> Wiring:
    """What the words want: the server that the host starts, or the daemon that runs."""
    for_daemon = [f"--{name}" for name in ("url", "token-variable") if name in values]
    if not host.hooks and for_daemon:
        raise UsageError(
            f"{for_daemon[0]} is not for {host.name}: {host.title} only starts servers itself; give --cache-root DIR"
        )
    if "stdio" in values or "cache-root" in values or not host.hooks:
        if for_daemon:
            raise UsageError(
                f"{for_daemon[0]} is for the daemon, --stdio and --cache-root are for a server without one"
            )
        return Stdio(executable(), cache_root(values))
    variable = values.get("token-variable", "")
    if "token-variable" in values and not is_variable(variable):
        raise UsageError(
            f"--token-variable is a variable's name, of letters, digits and _, not {variable!r}; the token goes into it"
        )
    try:
        url = address_from(values.get("url", DAEMON_URL)).url
    except BadAddress as problem:
        raise UsageError(f"--url cannot be used: {problem}") from problem
    return Daemon(shell_word(executable()), url, variable)


def _server_change(file: ConfigFile, wiring: Wiring, *, force: bool) -> Change:
    if file.text is None:
        folders = file.missing_folders()
        return Change(file, new_server_file(file.host, wiring, folders), folders)
    try:
        return Change(file, install_server(file.host, file.text, wiring, force=force), 0)
    except Unfit as problem:
        raise file.refuse(problem) from problem


def _hooks_changes(where: Places, wiring: Wiring, *, force: bool) -> list[Change]:
    if not where.hooks:
        return []
    if isinstance(wiring, Stdio):
        return _hooks_taken_out(where)
    file = ConfigFile(where.host, where.hooks)
    if file.text is None:
        folders = file.missing_folders()
        return [Change(file, new_hooks_file(where.host, wiring, folders), folders)]
    try:
        return [Change(file, install_hooks(where.host, file.text, wiring, force=force), 0)]
    except Unfit as problem:
        raise file.refuse(problem) from problem


def _hooks_taken_out(where: Places) -> list[Change]:
    """A server on stdio hears no hooks: those for a daemon go, where there are any."""
    try:
        file = ConfigFile(where.host, where.hooks)
    except StorageFailed as problem:
        note(f"whether {plain(where.hooks)} has hooks of ours is not known: {plain(problem.reason)}")
        return []
    if file.text is None:
        return []
    try:
        removal = uninstall_hooks(where.host, file.text)
    except Unfit as problem:
        raise file.refuse(problem) from problem
    return [change_to(file, removal)]
