"""What the product is measured against: the plain way to do the same, as a script of its own.

python -m bench.yardsticks read CACHE      open, parse and hash every document of a cache
python -m bench.yardsticks write SRC OUT   read, hash and write every file of a folder, with an fsync of each
"""

import hashlib
import json
import os
import sys


def read(cache: str) -> None:
    documents = os.path.join(cache, "documents")
    for name in os.listdir(documents):
        with open(os.path.join(documents, name), "rb") as file:
            document = json.loads(file.read())
        hashlib.sha256(document["content"].encode()).hexdigest()


def write(sources: str, out: str) -> None:
    os.makedirs(out)
    for folder, _, names in os.walk(sources):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                content = file.read()
            with open(os.path.join(out, hashlib.sha256(content).hexdigest()[:12]), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())


if __name__ == "__main__":
    if sys.argv[1] == "read":
        read(sys.argv[2])
    else:
        write(sys.argv[2], sys.argv[3])
