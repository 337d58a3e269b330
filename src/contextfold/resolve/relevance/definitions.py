"""Patterns for lines of source code that begin a top-level definition, by file extension. Pure."""

from __future__ import annotations

import re
from functools import cache

_PATTERNS = {
    "python": r"(?:async[ ]+def|def|class)[ ]+\w+",
    "javascript": (
        r"(?:export[ ]+)?(?:default[ ]+)?(?:declare[ ]+)?(?:abstract[ ]+)?(?:async[ ]+)?"
        r"(?:function\*?|class|interface|type|enum|namespace|module|const|let|var)[ ]+[\w$]+"
    ),
    "go": r"(?:func|type|var|const)[ ]+[\w(]",
    "rust": (
        r"(?:pub(?:\([^)\n]*\))?[ ]+)?(?:async[ ]+|unsafe[ ]+|const[ ]+|default[ ]+)*"
        r"(?:fn|struct|enum|union|trait|impl|mod|type|static|macro_rules!)\b"
    ),
    "jvm": (
        r"(?:(?:public|private|protected|internal|static|final|abstract|sealed|open|data|case|override|partial"
        r"|readonly|async|extern|unsafe|implicit|inline|export)[ ]+)*"
        r"(?:class|interface|enum|record|struct|object|trait|fun|def|namespace|extension|protocol|func|delegate"
        r"|@interface)[ ]+\w+"
    ),
    "c": (
        r"(?:struct|class|enum|union|namespace|template|typedef|#define)\b[^\n;]*"
        r"|[A-Za-z_][\w \t*&:<>,~]{0,200}\([^;\n]{0,400}$"
    ),
    "ruby": r"(?:def|class|module)[ ]+\w+",
    "php": r"(?:(?:abstract|final|readonly)[ ]+)*(?:function|class|interface|trait|enum|namespace)[ ]+\w+",
    "shell": r"(?:function[ ]+)?[\w-]+[ ]*\(\)",
    "sql": r"(?i:create|alter|insert|drop)\b[^\n;]{0,200}",
    "lua": r"(?:local[ ]+)?function[ ]+[\w.:]+",
    "elixir": r"(?:defmodule|defprotocol|defimpl)[ ]+[\w.]+",
    "haskell": r"(?:data|newtype|type|class|instance|module)[ ]+[\w.]+|\w+[ ]+::",
    "perl": r"(?:sub|package)[ ]+[\w:]+",
    "r": r"[\w.]+[ ]*(?:<-|=)[ ]*function\b",
    "julia": r"(?:function|struct|mutable struct|abstract type|module|macro)[ ]+[\w.!]+",
    "protobuf": r"(?:message|enum|service|extend)[ ]+\w+",
    "css": r"[^\s@/{}][^\n{}]{0,200}\{",
    "clojure": r"\((?:def\w*|ns)[ ]+[^\s)]+",
    "terraform": r"(?:resource|data|variable|output|module|provider|locals|terraform)\b[^\n{]{0,200}",
}
_EXTENSIONS = {
    "python": "py pyi pyx",
    "javascript": "js mjs cjs jsx ts mts cts tsx vue svelte",
    "go": "go",
    "rust": "rs",
    "jvm": "java kt kts scala cs swift groovy dart",
    "c": "c h cc cpp cxx hh hpp hxx m mm cu",
    "ruby": "rb",
    "php": "php",
    "shell": "sh bash zsh",
    "sql": "sql",
    "lua": "lua",
    "elixir": "ex exs",
    "haskell": "hs",
    "perl": "pl pm",
    "r": "r",
    "julia": "jl",
    "protobuf": "proto",
    "css": "css scss less",
    "clojure": "clj cljs cljc",
    "terraform": "tf",
}
_LANGUAGES = {extension: language for language, extensions in _EXTENSIONS.items() for extension in extensions.split()}


@cache
def definition_pattern(extension: str) -> re.Pattern[str] | None:
    """The pattern for the beginning of a definition; None for files that are not source code."""
    language = _LANGUAGES.get(extension)
    return re.compile("^(?:" + _PATTERNS[language] + ")", re.MULTILINE) if language else None


def heading_of_definition(opening: str) -> str:
    """The definition's name with its keywords, on one line."""
    return " ".join(opening.split()).rstrip("{(=: ")
