"""Which lines of a document are headings, by its format; and where a long section is cut."""

from __future__ import annotations

import pytest

from contextfold.resolve.relevance.sections import LONG_SECTION, outline


def headings(path: str, text: str) -> list[str]:
    return [" › ".join(section.headings) for section in outline(path, text).sections]


@pytest.mark.parametrize(
    ("path", "line", "heading"),
    [
        ("a.go", "func RollBack() error {", "func RollBack"),
        ("a.go", "func (s *Server) RollBack() error {", "func (s *Server) RollBack"),
        ("a.go", "type Widget struct {", "type Widget"),
        ("a.go", "var (", "var"),
        ("a.rs", "pub fn roll_back() {", "pub fn roll_back"),
        ("a.rs", "impl Foo for Bar {", "impl Foo for Bar"),
        ("a.rs", "unsafe impl<T> Send for Cell<T> {", "unsafe impl<T> Send for Cell<T>"),
        ("a.rs", "pub(crate) struct Widget;", "pub(crate) struct Widget"),
        ("a.rs", "macro_rules! zap {", "macro_rules! zap"),
        ("a.rs", "pub const MAX: u8 = 1;", "pub const MAX"),
        ("a.rs", "pub const unsafe fn roll() {", "pub const unsafe fn roll"),
        ("a.rs", 'const unsafe extern "C-unwind" fn roll() {', 'const unsafe extern "C-unwind" fn roll'),
        ("a.rs", "static mut COUNTER: u8 = 1;", "static mut COUNTER"),
        ("a.rb", "def self.roll(back)", "def self.roll"),
        ("a.rb", "def empty?", "def empty?"),
        ("a.sh", "function other {", "function other"),
        ("a.sh", "roll-back() {", "roll-back()"),
    ],
)
def test_a_definition_is_a_heading_with_its_name(path: str, line: str, heading: str) -> None:
    assert headings(path, f"{line}\n  body\n") == [heading]


PYTHON = """class C(B):
    x = 1

    # About g.
    @cached
    def g(self):
        def h(): ...

    class D:
        a = 1
"""
TYPESCRIPT = """export class C {
  private a = call(
    b,
  );

  constructor(private b: B) {
    if (b) {
      b.c((d) => {
      });
    }
  }

  /** About g. */
  async g<T>(a: T): Promise<T> {
    return h(a, () => {
    });
  }
}
"""


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("a.py", PYTHON, ["class C", "class C › def g", "class C › class D"]),
        ("a.ts", TYPESCRIPT, ["export class C", "export class C › constructor", "export class C › async g"]),
        (
            "A.java",
            "class A {\n    int x;\n    @Deprecated\n    Map<K, V> b(int c) {\n        if (c) {\n        }\n    }\n}\n",
            ["class A", "class A › Map<K, V> b"],
        ),
        (
            "a.rs",
            "impl A for B {\n    const X: u8 = 1;\n    pub fn c(&self) {\n    }\n}\n",
            ["impl A for B", "impl A for B › pub fn c"],
        ),
        ("a.rb", "class A\n  X = 1\n  def b\n  end\nend\n", ["class A", "class A › def b"]),
        (
            "a.php",
            "class A {\n  public $x;\n  public static function b() {\n  }\n}\n",
            ["class A", "class A › public static function b"],
        ),
    ],
)
def test_methods_are_sections_below_their_class(path: str, text: str, expected: list[str]) -> None:
    assert headings(path, text) == expected


def test_a_method_has_the_comment_above_it() -> None:
    _, method, _ = outline("a.py", PYTHON).sections
    assert PYTHON[method.start : method.end].startswith("    # About g.")


def test_the_title_of_source_code_is_its_path() -> None:
    assert outline("pkg/a.py", PYTHON).title == "pkg/a.py"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("=====\nTitle\n=====\n\nFirst part\n----------\ntext\n", ["Title", "Title › First part"]),
        (".. _label:\n\nTitle\n~~~~~\n\ntext\n", ["", "Title"]),
        ("# Title\n\nFirst part\n----------\ntext\n", ["Title › First part"]),
        ("Plain text.\n\nMore of it.\n", [""]),
    ],
)
def test_a_text_file_may_have_headings_of_restructuredtext(text: str, expected: list[str]) -> None:
    assert headings("a.txt", text) == expected


def test_names_beyond_the_interpreters_unicode_are_names() -> None:
    # The two letters are of Unicode 15, which Python 3.11 does not know.
    assert headings("a.py", "def \U00031350first():\n    1\nclass \U0001e4d0thing:\n    2\n") == [
        "def \U00031350first",
        "class \U0001e4d0thing",
    ]


@pytest.mark.parametrize("path", ["config.yaml", "a/b.toml", "Makefile", "deploy/Dockerfile", "x.ini"])
def test_comments_of_settings_and_build_files_are_no_headings(path: str) -> None:
    assert headings(path, "# The port to listen on\nport: 1\n\n# Another one\nb: 2\n") == [""]


@pytest.mark.parametrize(("path", "title"), [("a.md", "# Title"), ("a.rst", "Title\n=====")])
def test_a_byte_order_mark_hides_no_heading(path: str, title: str) -> None:
    text = f"\ufeff{title}\n\ntext\n"
    found = outline(path, text)
    assert (found.title, len(found.sections)) == ("Title", 1)
    assert (found.sections[0].start, found.sections[0].end, found.sections[0].first_line) == (0, len(text), 1)


def test_asciidoc_titles_of_two_lines_are_headings_and_listings_are_not() -> None:
    text = (
        "Guide\n=====\nintro\n\nFirst Section\n-------------\ntext\n\nDeep\n~~~~\nmore\n\n"
        "Listing below\n----\n== no heading\n----\n\n== Other\nend\n"
    )
    assert headings("a.adoc", text) == [
        "Guide",
        "Guide › First Section",
        "Guide › First Section › Deep",
        "Guide › Other",
    ]


@pytest.mark.parametrize("title", ["`code` first", "[Unreleased] now", "*Emphasis* first"])
def test_an_underlined_heading_may_begin_with_a_mark(title: str) -> None:
    assert len(headings("a.md", f"text\n\n{title}\n---\nmore\n")) == 2


@pytest.mark.parametrize(
    "line", ["* item", "+ item", "```", "| a | b |", "- item", "> quote", "***", "[api]: x", "[^1]: y"]
)
def test_a_line_of_another_kind_above_dashes_is_no_heading(line: str) -> None:
    assert headings("a.md", f"text\n\n{line}\n---\nmore\n") == [""]


def test_an_underline_of_four_marks_is_enough_in_restructuredtext() -> None:
    assert headings("a.rst", "A long heading\n----\ntext\n") == ["A long heading"]
    assert headings("a.rst", "A long heading\n---\ntext\n") == [""]


@pytest.mark.parametrize("end", ["```\n", ""], ids=["closed", "open"])
def test_a_long_fence_is_cut_into_even_pieces(end: str) -> None:
    text = "intro\n\n```\n" + "0123456789\n\n" * 900 + end
    pieces = outline("a.md", text).sections
    lengths = [piece.end - piece.start for piece in pieces]
    assert sum(lengths) == len(text)
    assert max(lengths) <= 2 * LONG_SECTION + 20
    # The first is the text above the fence, the last the rest.
    assert min(lengths[1:-1]) > LONG_SECTION


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("a.md", "# Install\nx\n<pre>\n# apt install\n</pre>\n## Upgrade\ny\n", ["Install", "Install › Upgrade"]),
        ("a.md", "# Guide\nx\n<!--\n# Old\n```\n-->\n## Setup\ny\n", ["Guide", "Guide › Setup"]),
        ("a.md", "# Guide\nx\n<!-- one line -->\n## Setup\ny\n", ["Guide", "Guide › Setup"]),
        ("a.md", "x\n<!-- never closed\n# Guide\ny\n<!-- neither\n## Setup\nz\n", ["", "Guide", "Guide › Setup"]),
        ("a.md", "```\n<!--\n```\n# Guide\nx\n-->\n", ["", "Guide"]),
        ("a.adoc", "= Guide\nx\n\n////\n== Old\n////\n\n== Setup\ny\n", ["Guide", "Guide › Setup"]),
    ],
)
def test_lines_of_html_blocks_and_comments_are_no_headings(path: str, text: str, expected: list[str]) -> None:
    assert headings(path, text) == expected


def test_a_rule_in_the_first_line_is_not_front_matter() -> None:
    assert headings("a.md", "---\n\n# Guide\nx\n\n---\n\ny\n") == ["", "Guide"]
    assert headings("a.md", "---\ntitle: T\n# a comment\n---\n# Guide\nx\n") == ["", "Guide"]


def test_a_comment_in_the_first_line_belongs_to_the_definition_below() -> None:
    assert headings("a.py", "# What it does.\ndef a():\n    1\n") == ["def a"]
    assert headings("a.rs", "#[derive(Debug)]\nstruct A;\n") == ["struct A"]


def test_emphasis_is_not_part_of_a_heading() -> None:
    assert headings("a.md", "# *Very* **important**, 2*3*4\nx\n") == ["Very important, 2*3*4"]
