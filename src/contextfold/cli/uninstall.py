"""`context uninstall`: a host's configuration as it was before `context install`. Stdout is the difference made."""

from __future__ import annotations

from collections.abc import Mapping

from contextfold.cli.hosting import ConfigFile, config_file, show
from contextfold.cli.render import tell_on_terminal
from contextfold.failures import EXIT_OK
from contextfold.hosts import SERVER, Removal, Unfit, uninstall

EMPTY = "{}\n"


def run(values: Mapping[str, str]) -> int:
    file = config_file(values)
    removal = _removal(file)
    if removal.text == file.text:
        tell_on_terminal(f"nothing to do: {file.path} has no entry {SERVER}")
        return EXIT_OK
    if "dry-run" in values:
        show(file.path, file.text, removal.text)
        tell_on_terminal("nothing was changed; leave out --dry-run to do it")
    elif removal.text is None:
        file.delete(removal.folders)
        show(file.path, file.text, None)
        tell_on_terminal(f"{file.path} was made by install, and is gone")
    else:
        file.write(removal.text)
        show(file.path, file.text, removal.text)
        tell_on_terminal(f"{SERVER} is no longer in {file.path}")
    return EXIT_OK


def _removal(file: ConfigFile) -> Removal:
    if file.text is None:
        return Removal(None)
    try:
        removal = uninstall(file.host, file.text)
    except Unfit as problem:
        raise file.refuse(problem) from problem
    # Install makes no links: whoever made this one wants a file at its end.
    return Removal(EMPTY) if removal.text is None and file.is_link else removal
