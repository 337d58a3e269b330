"""`make bench`: all figures; exit 1 if one of them does not hold."""

import sys

from bench import resolve, stdio

held = [resolve.main(), stdio.main(), resolve.tampering()]
sys.exit(0 if all(held) else 1)
