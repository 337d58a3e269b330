"""SHA-256 of small texts without loading OpenSSL, which would take longer than a question. Files use `hashlib`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hashlib import sha256
else:
    import sys

    # CPython has the first module since version 3.12, the second one before.
    try:
        if sys.version_info >= (3, 12):
            from _sha2 import sha256
        else:
            from _sha256 import sha256
    except ImportError:
        from hashlib import sha256

__all__ = ["sha256"]
