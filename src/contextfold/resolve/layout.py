"""The names of a cache's files, and the constants of their fingerprints. Every question imports this module."""

from __future__ import annotations

MANIFEST_FILE = "manifest.json"
INDEX_FILE = "index.json"
DOCUMENTS_FOLDER = "documents"
PACK_FOLDER = "pack"
# A cache inside its own source folder contains this file, so that git does not list the cache. It is not part of it.
HIDING_FILE = ".gitignore"
# `context build DIR` puts the cache at this name below the folder.
DEFAULT_CACHE = ".context-cache"

# The packed index also has the fingerprints of these. The folder's timestamps change when a file is added or removed.
FRAME = [MANIFEST_FILE.encode(), INDEX_FILE.encode(), DOCUMENTS_FOLDER.encode()]

# A file's fingerprint has four numbers: size, mtime, ctime and inode. No real file has a negative size, so these two
# values differ from every fingerprint and from each other. UNTRUSTED is recorded for a file that must always be read;
# ABSENT is the fingerprint of a file whose status cannot be read.
FINGERPRINT_FIELDS = 4
UNTRUSTED = (-1, 0, 0, 0)
ABSENT = (-2, 0, 0, 0)
