"""`make bench`: all figures; exit 1 if one of them does not hold."""

import sys

from bench import resolve, stdio, tampering

held = [resolve.main(), stdio.main(), tampering.main()]
sys.exit(0 if all(held) else 1)
