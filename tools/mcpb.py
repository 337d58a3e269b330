"""Writes the bundle of the resolve server for desktop hosts: `python tools/mcpb.py TARGET.mcpb`.

The same sources give the same bytes. Modules that need a package beside the standard library go along; the server does
not import them.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The earliest time that an archive can hold.
EPOCH = (1980, 1, 1, 0, 0, 0)


def write_bundle(target: Path) -> None:
    folder, package = ROOT / "deploy" / "mcpb", ROOT / "src"
    files = {
        "manifest.json": folder / "manifest.json",
        "server/main.py": folder / "main.py",
        "LICENSE": ROOT / "LICENSE",
    }
    for path in sorted((package / "contextfold").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            files[f"server/{path.relative_to(package).as_posix()}"] = path
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name in sorted(files):
            bundle.writestr(zipfile.ZipInfo(name, EPOCH), files[name].read_bytes(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    write_bundle(Path(sys.argv[1]))
