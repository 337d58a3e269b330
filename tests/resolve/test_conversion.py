"""HTML pages and notebooks are converted to Markdown with headings."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextfold.common.canonical import Malformed
from contextfold.resolve.conversion import OUTPUT_MAX_CHARACTERS, NotText, html_text, notebook_text, text_of

HOSTILE_CHARACTERS = 300_000
TOKENS = ["<p>", "</p>", "<!--", "-->", "<", ">", '"', "a=", "&amp;", "x ", "<pre>", "\n", "#"]
MEMBERS = ["cells", "source", "cell_type", "outputs", "text", "data", "level"]
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(MEMBERS), inner),
    max_leaves=20,
)


class TestHtml:
    def test_headings_lists_and_code_become_markdown(self) -> None:
        page = """<!doctype html><html><head><title>Guide &amp; more</title><style>p {}</style></head><body>
            <nav><a href=x>Menu</a></nav><h1>Roll <em>back</em></h1><p>One
            two&nbsp;<b>three</b><br>four &lt;five&gt;</p><ul><li>first<li>second</ul>
            <pre><code>a  b\n  c</code></pre><h3>Deep</h3><script>var a = "<h1>no</h1>"</script></body></html>"""
        assert html_text(page) == (
            "# Roll back\n\nOne two\u00a0three\nfour <five>\n\n- first\n- second\n\n```\na  b\n  c\n```\n\n### Deep\n"
        )

    def test_a_page_without_headings_gets_its_title_as_heading(self) -> None:
        assert html_text("<title> The\n page </title><p>text") == "# The page\n\ntext\n"

    def test_text_that_looks_like_markdown_is_escaped(self) -> None:
        assert html_text("<p># one</p><p>``` two</p>a # b") == "\\# one\n\n\\``` two\n\na # b\n"
        assert html_text("<pre>```\n# x</pre>") == "````\n```\n# x\n````\n"

    def test_each_row_of_a_table_is_a_line(self) -> None:
        assert html_text("<table><tr><th>a<th>b<tr><td>1<td>2</table>") == "a | b\n\n1 | 2\n"

    def test_broken_markup_loses_no_text(self) -> None:
        assert html_text("<nav>menu<p>text <b>bold") == "menu\n\ntext bold\n"
        assert html_text('<a title="x>1</a> 2') == "1 2\n"
        assert (
            html_text("1 < 2 <3> &unknown; &#0; &#xD800; &#99999999;")
            == "1 < 2 <3> &unknown; \ufffd \ufffd &#99999999;\n"
        )
        assert html_text("") == ""

    @pytest.mark.parametrize(
        "unit",
        ["<div>", "<!--", '<a b="', "<script>", "<title>", "&#", "<", "</a", "<pre>`", "<nav>", "<![CDATA[", "x"],
    )
    def test_hostile_pages_take_linear_time(self, unit: str) -> None:
        """With quadratic time this test would exceed its timeout."""
        html_text(unit * (HOSTILE_CHARACTERS // len(unit)))

    @given(st.lists(st.sampled_from(TOKENS)))
    def test_the_text_of_any_page_is_empty_or_ends_with_a_newline(self, parts: list[str]) -> None:
        text = html_text("".join(parts))
        assert text == "" or (text.endswith("\n") and text.strip())


class TestNotebook:
    def test_prose_code_and_outputs_are_converted_in_order(self) -> None:
        notebook = {
            "metadata": {"language_info": {"name": "python"}},
            "cells": [
                {"cell_type": "markdown", "source": ["# Title\n", "text"]},
                {
                    "cell_type": "code",
                    "source": "print(1)",
                    "outputs": [
                        {"output_type": "stream", "text": ["1\n"]},
                        {"output_type": "display_data", "data": {"image/png": "AAAA", "text/plain": "<Figure>"}},
                        {"output_type": "error", "ename": "E", "evalue": "bad", "traceback": ["\x1b[31mlong"]},
                    ],
                },
            ],
        }
        text = notebook_text(json.dumps(notebook).encode())
        assert text == "# Title\ntext\n\n```python\nprint(1)\n```\n\n```\n1\n\nE: bad\n```\n"

    def test_notebooks_of_format_3_are_supported(self) -> None:
        cells = [{"cell_type": "heading", "level": 2, "source": "Old"}, {"cell_type": "code", "input": "x = 1"}]
        assert notebook_text(json.dumps({"worksheets": [{"cells": cells}]}).encode()) == "## Old\n\n```\nx = 1\n```\n"

    def test_long_outputs_are_cut(self) -> None:
        cell = {"cell_type": "code", "source": "", "outputs": [{"output_type": "stream", "text": "x" * 10**6}]}
        assert len(notebook_text(json.dumps({"cells": [cell]}).encode())) < OUTPUT_MAX_CHARACTERS + 100

    @pytest.mark.parametrize(
        "raw", [b"", b"{", b"[]", b"{}", b'{"cells": 1}', b"[" * 100_000, b'{"cells": "\\ud800"}', b"\xff"]
    )
    def test_an_invalid_notebook_is_refused(self, raw: bytes) -> None:
        with pytest.raises(Malformed):
            notebook_text(raw)
        with pytest.raises(NotText):
            text_of(b"a.ipynb", raw)

    @given(ANY_JSON)
    def test_any_json_is_converted_or_refused(self, value: object) -> None:
        with contextlib.suppress(Malformed):
            notebook_text(json.dumps({"cells": [value]}).encode())
