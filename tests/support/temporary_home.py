"""A temporary home folder for the tests and for the processes that they start.

Commands write below the home folder when no option names another one: caches, the store, the files of agent programs.
A test that forgets such an option must not change the files of the person who runs the tests.
"""

from __future__ import annotations

import os
import shutil
import tempfile


def use_temporary_home() -> str:
    """Set HOME to a new folder, for this process and its children; return the folder.

    The XDG variables are removed instead of set. Without them every base directory is below HOME, also where a test
    gives a process a home of its own. A worker of pytest-xdist has its home below that of the process which started it,
    so that the folder is removed also when the worker is killed.
    """
    for name in [name for name in os.environ if name.startswith("XDG_")]:
        del os.environ[name]
    below = os.environ["HOME"] if "PYTEST_XDIST_WORKER" in os.environ else None
    home = tempfile.mkdtemp(prefix="contextfold-home-", dir=below)
    os.environ["HOME"] = home
    return home


def remove_temporary_home(home: str) -> None:
    """Remove the folder. A process that is still ending may write there, so errors are ignored."""
    shutil.rmtree(home, ignore_errors=True)
