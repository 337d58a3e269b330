"""The yardsticks of the product: plain scripts that do the same work.

python -m bench.yardsticks read CACHE      open, parse and hash every document of a cache
python -m bench.yardsticks look CACHE      one lstat of every document of a cache
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


def look(cache: str) -> None:
    documents = os.path.join(cache, "documents")
    for name in os.listdir(documents):
        os.lstat(os.path.join(documents, name))


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
    match sys.argv[1:]:
        case ["read", cache]:
            read(cache)
        case ["look", cache]:
            look(cache)
        case ["write", sources, out]:
            write(sources, out)
