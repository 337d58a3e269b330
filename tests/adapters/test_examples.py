"""The examples in the docs about adapters can be imported as they are shown."""

from __future__ import annotations

import ast
import re

import pytest

from tests.adapters.scripted_conversation import import_or_skip
from tests.support.machine import ROOT

DOCS = (ROOT / "docs" / "messages.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
PACKAGES = ("pydantic_ai", "langchain", "agents", "litellm")
LINES_MAX = 14


@pytest.mark.parametrize("package", PACKAGES)
def test_an_example_is_short_and_its_imports_work(package: str) -> None:
    (block,) = [each for each in BLOCKS if re.search(rf"^(?:from|import) {package}\b", each, re.MULTILINE)]
    assert len([line for line in block.splitlines() if line]) <= LINES_MAX
    tree = ast.parse(block)
    import_or_skip(package)
    imports: list[ast.stmt] = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names: dict[str, object] = {}
    exec(compile(ast.Module(imports, []), "the example", "exec"), names)
    assert any(getattr(value, "__module__", "").startswith("contextfold.adapters") for value in names.values())
