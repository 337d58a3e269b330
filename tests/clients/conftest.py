"""A folder of caches for clients to ask about."""

from __future__ import annotations

from pathlib import Path

import pytest

from machine import context, write_files

pytest.register_assert_rewrite("clients.contract")

DOCUMENTS = {
    "deployment.md": "Deployment deployment deployment guide.",
    "größe.md": 'Größe "naïve" guide \\ \u2028 文書 🗺️\r\n\tend\x7f',
    "notes/empty.md": "",
}
PAGE = "A page of a big document, naïve and long.\n"


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`docs` is sound, `big` larger than any request may be, `broken` damaged, `empty` no cache at all."""
    folder = tmp_path_factory.mktemp("clients")
    root = folder / "shelf"
    sources = write_files(folder / "docs", DOCUMENTS)
    big = write_files(folder / "big", {"big.md": PAGE * 50_000})
    for name, documents in (("docs", sources), ("broken", sources), ("big", big)):
        ran = context("build", "--sources", documents, "--cache", root / name)
        assert ran.code == 0, ran.err
    (root / "broken" / "index.json").write_text("damaged")
    (root / "empty").mkdir()
    return root
