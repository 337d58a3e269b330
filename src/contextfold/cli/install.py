"""`context install`: a host's configuration gets the entry that starts our server. Stdout is the difference made."""

from __future__ import annotations

from collections.abc import Mapping

from contextfold.cli.hosting import cache_root, config_file, executable, show
from contextfold.cli.render import note, plain, tell_on_terminal
from contextfold.failures import EXIT_OK
from contextfold.hosts import SERVER, Unfit, install, is_foreign, new_file


def run(values: Mapping[str, str]) -> int:
    command, caches = executable(), cache_root(values)
    file = config_file(values)
    if file.text is None:
        text = new_file(file.host, command, caches, file.missing_folders())
    else:
        try:
            text = install(file.host, file.text, command, caches, force="force" in values)
            if is_foreign(file.host, file.text, command, caches):
                note(f"the entry {SERVER} in {plain(file.path)} was not install's; uninstall cannot bring it back")
        except Unfit as problem:
            raise file.refuse(problem) from problem
    if text == file.text:
        tell_on_terminal(f"nothing to do: {file.path} has the entry {SERVER} already")
    elif "dry-run" in values:
        show(file.path, file.text, text)
        tell_on_terminal("nothing was changed; leave out --dry-run to do it")
    else:
        file.write(text)
        show(file.path, file.text, text)
        tell_on_terminal(f"{SERVER} is in {file.path}; {file.host.after}")
    return EXIT_OK
