"""This machine as the tests use it: its Python interpreters, the installed command, and how often to repeat."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, chdir, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, NamedTuple

import pathspec
import pytest

from contextfold.cli.main import main

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "src"
SHARED = ROOT.parent / "shared"
GOLDEN = ROOT / "tests" / "golden"
COMMAND = Path(sys.executable).parent / "context"

# Most tests of resolving use these documents: two match `guide`, one is empty.
DOCUMENTS = {
    "deployment.md": "Deployment deployment deployment guide.",
    "security.md": "Security guide for teams.",
    "notes/empty.md": "",
}

SOAK = os.environ.get("CONTEXTFOLD_SOAK") == "1"
NEWEST_MINOR = 20
COMMAND_TIMEOUT_S = 120


def times(sample: int, soak: int) -> int:
    """How often to try something: a sample in `make test`, many times in `make soak`."""
    return soak if SOAK else sample


class Ran(NamedTuple):
    """The exit code of a command, and what it wrote."""

    code: int
    out: bytes
    err: str


# This is the type of the `call` fixture.
Call = Callable[..., Ran]


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files below a folder; their names are UTF-8, whatever the locale."""
    for name, content in files.items():
        path = os.path.join(os.fsencode(folder), name.encode())
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
    return folder


def run_command(
    *argv: object, env: Mapping[str, str] | None = None, cwd: Path | None = None, stdin: bytes = b""
) -> Ran:
    """Run `context` with these arguments in this process. `env` is its whole environment.

    Its standard streams are files, so that it does not matter whether the command writes to a stream or a descriptor.
    """
    words = [os.fsdecode(word) if isinstance(word, bytes) else str(word) for word in argv]
    with ExitStack() as stack:
        given, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        given.write(stdin)
        given.seek(0)
        with _standard_streams(given, out, err), _environment(env), chdir(cwd or os.getcwd()):
            code = main(words)
        out.seek(0)
        err.seek(0)
        return Ran(code, out.read(), err.read().decode("utf-8", "surrogateescape"))


@contextmanager
def _standard_streams(*files: IO[bytes]) -> Iterator[None]:
    """Standard input, output and error are these files, as descriptors and as streams."""
    before = sys.stdin, sys.stdout, sys.stderr
    saved = [os.dup(number) for number in range(len(files))]
    try:
        for number, file in enumerate(files):
            os.dup2(file.fileno(), number)
        with (
            open(0, encoding="utf-8", closefd=False) as sys.stdin,
            open(1, "w", 1, "utf-8", "surrogateescape", closefd=False) as sys.stdout,
            open(2, "w", 1, "utf-8", "surrogateescape", closefd=False) as sys.stderr,
        ):
            yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
        for number, descriptor in enumerate(saved):
            os.dup2(descriptor, number)
            os.close(descriptor)


@contextmanager
def _environment(variables: Mapping[str, str] | None) -> Iterator[None]:
    before = dict(os.environ)
    try:
        set_environment(before if variables is None else variables)
        yield
    finally:
        set_environment(before)


def set_environment(variables: Mapping[str, str]) -> None:
    if os.environ == variables:
        return
    os.environ.clear()
    os.environ.update(variables)
    time.tzset()


def run_program(*argv: str | bytes | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Ran:
    """Run the installed `context`, for what only a new interpreter has: its locale, its hash seed, its start."""
    done = subprocess.run(
        [COMMAND, *argv], env=env, cwd=cwd, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False
    )
    return Ran(done.returncode, done.stdout, done.stderr.decode("utf-8", "surrogateescape"))


@cache
def interpreters() -> dict[str, str]:
    """Every supported CPython on this machine, by version; this one first."""
    pythons = {f"{sys.version_info.major}.{sys.version_info.minor}": sys.executable}
    names = [f"python3.{minor}" for minor in range(11, NEWEST_MINOR)]
    folders = os.environ["PATH"].split(":")
    # The scripts of pyenv search for an interpreter each time, so the interpreters themselves are used.
    shims = [Path(folder) for folder in folders if folder.endswith("/shims")]
    path_without = ":".join(folder for folder in folders if Path(folder) not in shims)
    candidates = [path for name in names if (path := shutil.which(name, path=path_without))]
    candidates += sorted(
        str(path) for name in names for shim in shims for path in shim.parent.glob(f"versions/*/bin/{name}")
    )
    for path in candidates:
        script = "import sys; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([path, "-I", "-c", script], capture_output=True, text=True, timeout=30, check=False)
        if done.returncode == 0:
            pythons.setdefault(done.stdout.strip(), path)
    return pythons


def from_sources() -> dict[str, str]:
    """The variables with which another interpreter runs the sources, compiled once in a folder of the tests.

    It finds `pathspec`, which is pure Python, and no other library.
    """
    libraries = Path(os.environ["HOME"], ".libraries")
    libraries.mkdir(exist_ok=True)
    with suppress(FileExistsError):
        (libraries / "pathspec").symlink_to(Path(pathspec.__file__).parent)
    compiled = os.path.join(os.environ["HOME"], ".compiled")
    return {"PYTHONPATH": f"{SOURCE}:{libraries}", "PYTHONPYCACHEPREFIX": compiled}


def command_of(python: str) -> list[str]:
    """The command line of `context` for another interpreter, which runs it from the sources."""
    settings = [f"{name}={value}" for name, value in from_sources().items()]
    return ["env", "-u", "PYTHONDONTWRITEBYTECODE", *settings, python, "-m", "contextfold"]


def as_nobody(
    tmp_path: Path, *argv: str, cwd: Path | None = None, text_input: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs the command as a user with few permissions; the program's files must be readable to that user."""
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.stat().st_uid == os.geteuid() and str(folder) not in ("/", "/tmp"):
            folder.chmod(folder.stat().st_mode | 0o755)
    tmp_path.chmod(0o777)
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", str(COMMAND), *argv]
    if subprocess.run([*command[:5], "--version"], capture_output=True, check=False).returncode != 0:
        pytest.skip("the user nobody cannot read the interpreter")
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=cwd, input=text_input)


def ids(cache: Path) -> list[str]:
    return [entry["id"] for entry in json.loads((cache / "manifest.json").read_text())["documents"]]


def file_version(path: Path) -> tuple[int, int, int]:
    """What changes when a file is written or replaced. Reading it changes its time of access only."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def leftover_files(cache: Path) -> list[str]:
    """The files that a build left next to the cache."""
    return sorted(name for name in os.listdir(cache.parent) if name.startswith(f".{cache.name}"))


def read_terminal(descriptor: int) -> str:
    """Everything that is written to a terminal until the last process closes it."""
    output = b""
    try:
        while chunk := os.read(descriptor, 4096):
            output += chunk
    except OSError:
        # A terminal that no process has open any more reports its end with this error.
        pass
    return output.decode()


if __name__ == "__main__":
    print("\n".join(list(interpreters().values())[1:]))
