"""The proof that a daemon on loopback is this user's, where the system does not tell whose sockets there are.

Such a daemon keeps a secret for its port in a file that only its user can read. Who is asked must know it: the proof is
a keyed hash of what was asked, so that it shows nothing to others and cannot be used again.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SECRET_BYTES = 32
CHALLENGE_LENGTH_MAX = 128


@contextmanager
def kept_secret(folder: str, port: int) -> Iterator[None]:
    """Keep a new secret in the folder, until the block ends."""
    path = _path(folder, port)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with suppress(FileNotFoundError):
        os.unlink(path)
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_bytes(SECRET_BYTES))
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            os.unlink(path)


def find_proof(folder: str, port: int, challenge: str) -> str:
    """The proof for a challenge; empty if there is no secret for this port that this user alone can read."""
    try:
        with open(_path(folder, port), "rb") as file:
            about = os.fstat(file.fileno())
            secret = file.read(SECRET_BYTES)
    except OSError:
        return ""
    is_private = about.st_uid == os.geteuid() and not about.st_mode & 0o077
    if not is_private or len(secret) != SECRET_BYTES or len(challenge) > CHALLENGE_LENGTH_MAX:
        return ""
    return hmac.new(secret, challenge.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def _path(folder: str, port: int) -> str:
    return os.path.join(folder, str(port))
