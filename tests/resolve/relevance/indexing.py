"""Caches and relevance indexes for tests, made without the command line."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from contextfold import Cache, open_cache
from contextfold.resolve.build import build
from contextfold.resolve.cache_format import Document, version_of
from contextfold.resolve.index import Index
from contextfold.resolve.index_writer import IndexWriter
from tests.support.machine import write_files

CREATED_AT = "2024-01-01T00:00:00Z"


def build_cache(folder: Path, files: Mapping[str, str]) -> Cache:
    """Builds a cache of these files."""
    sources = write_files(folder / "sources", files)
    sources.mkdir(exist_ok=True)
    cache = folder / "cache"
    build(bytes(sources), bytes(cache), force=True, created_at=CREATED_AT, progress=lambda _done, _total: None)
    return open_cache(cache)


def documents_of(files: Mapping[str, str]) -> list[Document]:
    documents = [Document(path, version_of(text.encode()), path, text.encode()) for path, text in files.items()]
    return sorted(documents, key=lambda document: document.id.encode())


def write_index(folder: Path, files: Mapping[str, str]) -> Index:
    """Writes the index of these files, without a cache around it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = bytes(folder / "index.sqlite")
    writer = IndexWriter(path)
    for document in documents_of(files):
        writer.add(document)
    writer.finish({})
    return Index(path)


WORDS = [
    "deploy", "deploying", "deployment", "rollback", "roll", "back", "cache", "caches", "Cache", "index", "indexed",
    "getHttpResponse", "http_response", "fold", "folding", "folded", "the", "of", "and", "proxy", "token", "tokens",
    "budget", "café", "ΣΊΣΥΦΟΣ", "数据库", "同步数据", "東京", "x", "42", "v1.2", "don't",
]  # fmt: skip


def random_documents(seed: int, count: int) -> dict[str, str]:
    """Random documents with headings, fences and long sections, of few words, so that queries match many documents."""
    rng = random.Random(seed)
    files: dict[str, str] = {}
    for number in range(count):
        lines = [f"---\ntitle: {' '.join(rng.choices(WORDS, k=3))}\n---"] if rng.random() < 0.3 else []
        for _ in range(rng.randrange(6)):
            if rng.random() < 0.7:
                lines.append("#" * rng.randrange(1, 4) + " " + " ".join(rng.choices(WORDS, k=rng.randrange(1, 4))))
            for _ in range(rng.randrange(4)):
                lines.append(" ".join(rng.choices(WORDS, k=rng.randrange(60))) + "\n")
            if rng.random() < 0.5:
                page = rng.choice([*files, "no/page.md"])
                stem = page.removesuffix(".md")
                place = rng.choice([f"../{page}#x", f"/docs/{page}", f"/{stem}?y", page, f"a:{page}"])
                words = " ".join(rng.choices(WORDS, k=rng.randrange(1, 4)))
                lines.append(f"See [{words}]({place}).")
            if rng.random() < 0.2:
                lines.append("```\n# " + rng.choice(WORDS) + "\n```")
        files[f"{rng.choice(WORDS)}/page-{number}.md".lower()] = "\n".join(lines)
    return files
