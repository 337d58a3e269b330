"""The entry point of the bundle: the resolve server over stdio, which needs nothing but the standard library."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    from contextfold.cli.main import run_stdio_server

    sys.exit(run_stdio_server())
