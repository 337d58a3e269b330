"""The tests and the processes that they start have a temporary home folder."""

from __future__ import annotations

import ast
import os
import pwd
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.machine import ROOT


def test_a_process_that_a_test_starts_has_a_temporary_home() -> None:
    program = "import os; print(os.path.expanduser('~')); print([name for name in os.environ if name[:4] == 'XDG_'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    home, variables = done.stdout.splitlines()
    assert home == os.environ["HOME"]
    assert Path(home).is_relative_to(tempfile.gettempdir())
    assert home != pwd.getpwuid(os.getuid()).pw_dir
    assert variables == "[]"


def test_every_environment_that_a_test_makes_has_a_home() -> None:
    """Without HOME, a process takes the real home folder from the user database."""
    without_home = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        source = path.read_text("utf-8")
        # Most files make no environment; they are not parsed.
        for node in ast.walk(ast.parse(source)) if '"PATH"' in source else ():
            if not isinstance(node, ast.Dict):
                continue
            names = {key.value for key in node.keys if isinstance(key, ast.Constant)}
            copies = {ast.unparse(value) for key, value in zip(node.keys, node.values, strict=True) if key is None}
            if "PATH" in names and "HOME" not in names and "os.environ" not in copies:
                without_home.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert without_home == []
