r"""Patterns for lines of source code that begin a top-level definition, by file extension. Pure.

What a pattern matches is the section's heading, so each ends with the name. In the patterns `\w` means an ASCII word
character or any character beyond ASCII: every Python must find the same names, and their tables of Unicode differ.
"""

from __future__ import annotations

import re
from functools import cache

_WORD = r"0-9A-Za-z_\x80-\U0010ffff"
# The pattern of a language, by the extensions of its files.
_PATTERNS = {
    "py pyi pyx": r"(?:async[ ]+def|def|class)[ ]+\w+",
    "js mjs cjs jsx ts mts cts tsx vue svelte": (
        r"(?:export[ ]+)?(?:default[ ]+)?(?:declare[ ]+)?(?:abstract[ ]+)?(?:async[ ]+)?"
        r"(?:function\*?|class|interface|type|enum|namespace|module|const|let|var)[ ]+[\w$]+"
    ),
    "go": r"func[ ]+(?:\([^)\n]{0,200}\)[ ]*)?\w+|(?:type|var|const)[ ]+(?:\w+|\()",
    "rs": (
        r"(?:pub(?:\([^)\n]{0,200}\))?[ ]+)?"
        r"(?:(?:async|unsafe|default|extern[ ]+\"[^\"\n]{0,40}\")[ ]+|const[ ]+(?=(?:async|unsafe|extern|fn)\b))*"
        r"(?:(?:fn|struct|enum|union|trait|mod|type|static(?:[ ]+mut)?|const|macro_rules!)[ ]+\w+|impl\b[^\n{]{0,200})"
    ),
    "java kt kts scala cs swift groovy dart": (
        r"(?:(?:public|private|protected|internal|static|final|abstract|sealed|open|data|case|override|partial"
        r"|readonly|async|extern|unsafe|implicit|inline|export)[ ]+)*"
        r"(?:class|interface|enum|record|struct|object|trait|fun|def|namespace|extension|protocol|func|delegate"
        r"|@interface)[ ]+\w+"
    ),
    "c h cc cpp cxx hh hpp hxx m mm cu": (
        r"(?:struct|class|enum|union|namespace|template|typedef|#define)\b[^\n;]*"
        r"|[A-Za-z_][\w \t*&:<>,~]{0,200}\([^;\n]{0,400}$"
    ),
    "rb": r"(?:def|class|module)[ ]+\w+(?:(?:\.|::)\w+)*[?!]?",
    "php": r"(?:(?:abstract|final|readonly)[ ]+)*(?:function|class|interface|trait|enum|namespace)[ ]+\w+",
    "sh bash zsh": r"function[ ]+[\w-]+|[\w-]+[ ]*\(\)",
    "sql": r"(?i:create|alter|insert|drop)\b[^\n;]{0,200}",
    "lua": r"(?:local[ ]+)?function[ ]+[\w.:]+",
    "ex exs": r"(?:defmodule|defprotocol|defimpl)[ ]+[\w.]+",
    "hs": r"(?:data|newtype|type|class|instance|module)[ ]+[\w.]+|\w+[ ]+::",
    "pl pm": r"(?:sub|package)[ ]+[\w:]+",
    "r": r"[\w.]+[ ]*(?:<-|=)[ ]*function\b",
    "jl": r"(?:function|struct|mutable struct|abstract type|module|macro)[ ]+[\w.!]+",
    "proto": r"(?:message|enum|service|extend)[ ]+\w+",
    "css scss less": r"[^\s@/{}][^\n{}]{0,200}\{",
    "clj cljs cljc": r"\((?:def\w*|ns)[ ]+[^\s)]+",
    # Nothing is a definition. Lines with `#` are comments there, not headings.
    (
        "ada adb ads asm awk bat bzl cfg cmake conf cr d el elm env erl f f90 fish fs fsx gleam gradle graphql hcl hrl "
        "idr ini lisp ml mli nim nix pas properties ps1 rkt s sass scm service sol tcl thrift toml v vb vhd vhdl vim "
        "wgsl yaml yml zig dockerfile gemfile justfile makefile procfile rakefile vagrantfile"
    ): r"(?!)",
    "tf": r"(?:resource|data|variable|output|module|provider|locals|terraform)\b[^\n{]{0,200}",
}
_BY_EXTENSION = {extension: pattern for extensions, pattern in _PATTERNS.items() for extension in extensions.split()}


def definition_pattern(extension: str) -> re.Pattern[str] | None:
    """The pattern for the beginning of a definition; None for files that are not source code.

    A file without an extension is given by its name.
    """
    pattern = _BY_EXTENSION.get(extension)
    return _compiled(pattern) if pattern else None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    # Inside brackets, and alone.
    pattern = pattern.replace(r"[\w", rf"[{_WORD}").replace(r"\w", f"[{_WORD}]")
    return re.compile(f"^(?:{pattern})", re.MULTILINE | re.ASCII)


def heading_of_definition(opening: str) -> str:
    """The definition's name with its keywords, on one line."""
    return " ".join(opening.split()).rstrip("{(=: ")
