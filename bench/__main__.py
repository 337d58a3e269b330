"""`make bench`: all figures; exit 1 if one of them does not hold."""

import sys

from bench import resolve

sys.exit(0 if resolve.main() else 1)
