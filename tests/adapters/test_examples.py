"""What the page about adapters shows can be imported and called as it is shown."""

from __future__ import annotations

import ast
import re

import pytest

from tests.adapters.days import needed
from tests.support.machine import ROOT

PAGE = (ROOT / "docs" / "adapters.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PACKAGES = ("pydantic_ai", "langchain", "agents", "litellm")
LINES_MAX = 14


@pytest.mark.parametrize("package", PACKAGES)
def test_an_example_is_short_and_imports_what_there_is(package: str) -> None:
    (block,) = [each for each in BLOCKS if re.search(rf"^(?:from|import) {package}\b", each, re.MULTILINE)]
    assert len([line for line in block.splitlines() if line]) <= LINES_MAX
    tree = ast.parse(block)
    needed(package)
    imports: list[ast.stmt] = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names: dict[str, object] = {}
    exec(compile(ast.Module(imports, []), "the example", "exec"), names)
    assert any(getattr(value, "__module__", "").startswith("contextfold.adapters") for value in names.values())
