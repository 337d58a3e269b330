"""The names of a cache's files, and what tells that one of them is as it was. Data alone; every question loads this."""

from __future__ import annotations

MANIFEST_FILE = "manifest.json"
INDEX_FILE = "index.json"
DOCUMENTS_FOLDER = "documents"
PACK_FOLDER = "pack"

# What else must look as it did: the two lists, and the folder, which tells of files added or removed.
FRAME = [MANIFEST_FILE.encode(), INDEX_FILE.encode(), DOCUMENTS_FOLDER.encode()]

# A file's fingerprint: size, mtime, ctime and inode. These two equal no other and not each other.
FINGERPRINT_FIELDS = 4
UNTRUSTED = (-1, 0, 0, 0)  # recorded for a file that must be read in any case
ABSENT = (-2, 0, 0, 0)  # seen for a file that cannot be looked at
