"""Every write and every sync of a state file fails in turn: the store opens again, and nothing acknowledged is lost."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.machine import ROOT, SOURCE, times

HERE = Path(__file__).parent
# Every call in a soak test, otherwise every few of them.
STEP = times(7, 1)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("faults are injected on Linux, with a C compiler")
    built = tmp_path_factory.mktemp("faults") / "io_faults.so"
    argv = [compiler, "-shared", "-fPIC", "-O1", "-o", str(built), str(HERE / "io_faults.c"), "-ldl", "-lpthread"]
    subprocess.run(argv, check=True)
    return built


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["an I/O error", "a full disk"])
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
def test_a_failing_write_or_sync_loses_nothing_that_was_acknowledged(
    library: Path, tmp_path: Path, error: int, lasting: bool
) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{SOURCE}:{ROOT}", "LD_PRELOAD": str(library)}
    words = [str(library), str(tmp_path), str(error), str(int(lasting)), str(STEP)]
    argv = [sys.executable, str(HERE / "io_fault_worker.py"), *words]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    # Opening the file and six commits write and sync more often than this.
    assert int(done.stdout) * STEP > 30
    print(f"failing writes and syncs {int(done.stdout)}, 0 acknowledged commits lost")
