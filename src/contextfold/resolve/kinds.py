"""Recognises the kinds of files by name and first bytes: prose, source code, others. Pure.

The name decides whether a file is read. The content decides whether it is text that a person wrote. Names are compared
in ASCII lowercase, so README.MD is Markdown too.
"""

from __future__ import annotations

import re

# The kinds of documents: `.md` files only, or every known kind of text.
MARKDOWN_ONLY = "markdown"
ALL_TEXT = "text"

MARKDOWN_SUFFIX = b".md"

MARKDOWN = frozenset((b".md", b".mdx", b".markdown"))
HTML = frozenset((b".html", b".htm", b".xhtml"))
NOTEBOOK = frozenset((b".ipynb",))
PROSE = MARKDOWN | HTML | NOTEBOOK | {b".txt", b".rst", b".adoc", b".asciidoc", b".org"}

CODE = frozenset(
    b".ada .adb .ads .asm .awk .bash .bat .bzl .c .cc .cjs .clj .cljc .cljs .cmake .cpp .cr .cs .css .cts .cu .cxx .d "
    b".dart .el .elm .erl .ex .exs .f .f90 .fish .fs .fsx .gleam .go .gradle .graphql .groovy .h .hcl .hh .hpp .hrl "
    b".hs .hxx .idr .java .jl .js .jsx .kt .kts .less .lisp .lua .m .mjs .ml .mli .mm .mts .nim .nix .pas .php .pl .pm "
    b".proto .ps1 .py .pyi .pyx .r .rb .rkt .rs .s .sass .scala .scm .scss .sh .sol .sql .svelte .swift .tcl .tf "
    b".thrift .toml .ts .tsx .v .vb .vhd .vhdl .vim .vue .wgsl .yaml .yml .zig .zsh".split()
)
NAMES = frozenset(
    b"authors changelog changes contributing copying dockerfile gemfile install justfile license makefile news notice "
    b"procfile rakefile readme todo vagrantfile".split()
)

# The folders of version control systems, and folders that other programs fill.
VERSION_CONTROL = frozenset((b".git", b".hg", b".svn", b".jj", b".bzr", b"CVS"))
FILLED_BY_PROGRAMS = frozenset(
    b"node_modules bower_components __pycache__ .mypy_cache .pytest_cache .ruff_cache .tox .nox .eggs .gradle .next "
    b".nuxt .svelte-kit .parcel-cache .terraform .venv .yarn .pnpm-store".split()
)
# A folder with one of these files was made by a program.
MARKS_OF_PROGRAMS = frozenset((b"pyvenv.cfg", b"CACHEDIR.TAG"))
# A folder with all of these names is a cache of this program.
NAMES_IN_A_CACHE = frozenset((b"manifest.json", b"index.json", b"documents"))

GENERATED_NAMES = frozenset(
    b"cargo.lock composer.lock gemfile.lock go.sum npm-shrinkwrap.json package-lock.json pipfile.lock pnpm-lock.yaml "
    b"poetry.lock uv.lock yarn.lock".split()
)
GENERATED_SUFFIXES = (b".min.js", b".min.css", b".bundle.js", b"_pb2.py", b"_pb2_grpc.py", b".pb.go", b".g.dart")
# Source code with a longer line was not written by hand.
GENERATED_LINE_BYTES = 5000
# A NUL byte and a generator's note are searched for in this many bytes at the beginning of a file.
HEAD_BYTES = 8192
_GENERATOR_NOTE = re.compile(rb"@generated\b|\bcode generated\b.{0,200}\bdo not edit\b", re.IGNORECASE)

TEXT_MAX_BYTES = 8 << 20

# The reasons why files are left out. Messages print them after a number.
OF_ANOTHER_KIND = "of another kind"
BINARY = "binary"
NOT_UTF_8 = "not UTF-8"
TOO_LARGE = f"larger than {TEXT_MAX_BYTES >> 20} MiB"
GENERATED = "generated"
NO_NOTEBOOK = "broken notebooks"
SAME_ID = "with the id of another file"
UNNAMEABLE = "with a path that is not UTF-8"
PROGRAM_FOLDER = "folders that programs fill"
LINK_OUTSIDE = "links that lead out of the folder"
LINK_TO_LEFT_OUT = "links to files that are left out"


def suffix_of(name: bytes) -> bytes:
    """The suffix of a name in lowercase; empty for a name such as `.md`."""
    stem, dot, suffix = name.rpartition(b".")
    return (dot + suffix).lower() if stem else b""


def is_plain_markdown(name: bytes) -> bool:
    """Whether a name ends in `.md`, in lowercase. The first version of caches had only such files."""
    return name.endswith(MARKDOWN_SUFFIX) and name != MARKDOWN_SUFFIX


def is_text_name(name: bytes) -> bool:
    """Whether a file of this name is read when the documents are of the kind "text"."""
    suffix = suffix_of(name)
    return suffix in PROSE or suffix in CODE or (not suffix and name.lower() in NAMES)


def is_generated_name(name: bytes) -> bool:
    lowered = name.lower()
    return lowered in GENERATED_NAMES or lowered.endswith(GENERATED_SUFFIXES)


def fault_of(name: bytes, raw: bytes) -> str | None:
    """The reason why these bytes are not text that a person wrote; None if they are."""
    if b"\0" in raw[:HEAD_BYTES]:
        return BINARY
    if suffix_of(name) in CODE and (_GENERATOR_NOTE.search(raw[:HEAD_BYTES]) or _has_long_line(raw)):
        return GENERATED
    return None


def _has_long_line(raw: bytes) -> bool:
    at = 0
    while len(raw) - at > GENERATED_LINE_BYTES:
        newline = raw.rfind(b"\n", at, at + GENERATED_LINE_BYTES + 1)
        if newline < 0:
            return True
        at = newline + 1
    return False
