"""A second implementation of the contract: slow, simple, and without code from src."""

from __future__ import annotations

import hashlib
import json
import re

import numpy

from tests.support.machine import GOLDEN

WHITE_SPACE = {chr(c) for c in (*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B))}
WHITE_SPACE |= {chr(c) for c in (0x2028, 0x2029, 0x202F, 0x205F, 0x3000)}

LOWER: dict[str, str] = {}
CASED: set[str] = set()
IGNORABLE: set[str] = set()
for _line in (GOLDEN / "lowercase-unicode17.tsv").read_text(encoding="utf-8").splitlines():
    _kind, *_fields = _line.split("\t")
    if _kind == "L":
        LOWER[chr(int(_fields[0], 16))] = "".join(chr(int(c, 16)) for f in _fields[1:] for c in f.split())
    elif _kind in ("C", "I"):
        (CASED if _kind == "C" else IGNORABLE).add(chr(int(_fields[0], 16)))


def lowercase(text: str) -> str:
    out = []
    for index, character in enumerate(text):
        if character == "Σ":
            before = [c for c in text[:index] if c not in IGNORABLE][-1:]
            after = [c for c in text[index + 1 :] if c not in IGNORABLE][:1]
            final = before and before[0] in CASED and not (after and after[0] in CASED)
            out.append("ς" if final else "σ")
        else:
            out.append(LOWER.get(character, character))
    return "".join(out)


def words(text: str) -> list[str]:
    parts = [""]
    for character in lowercase(text):
        if character in WHITE_SPACE:
            parts.append("")
        else:
            parts[-1] += character
    return [word for word in parts if word]


def score_text(matches: int, total: int) -> str:
    if total == 0:
        return "0.0"
    score = numpy.float32(matches) / numpy.float32(total)
    if score > 0 and str(numpy.format_float_positional(score, trim="0")) < "0.000001":
        return str(numpy.format_float_scientific(score, trim="-", exp_digits=1))
    return str(numpy.format_float_positional(score, trim="0"))


def document_id(path: str) -> str:
    return re.sub(r"^(\./)+", "", lowercase(path.replace("\\", "/")))


def resolve(files: dict[str, bytes], query: str, budget: int) -> str:
    """The bytes `context resolve` must print for these sources (path: content)."""
    terms = words(query)
    ranked = []
    for path, content in files.items():
        text = content.decode()
        all_words = words(text)
        matches = sum(word in terms for word in all_words)
        score = numpy.float32(matches) / numpy.float32(len(all_words)) if all_words else numpy.float32(0)
        name = document_id(path)
        ranked.append((-score, name.encode(), name, content, matches, len(all_words)))
    ranked.sort(key=lambda row: row[:2])
    parts, used = [], 0
    for _, _, name, content, matches, total in ranked:
        tokens = (len(content) + 3) // 4
        if budget == 0 or used + tokens > budget:
            continue
        used += tokens
        version = "sha256:" + hashlib.sha256(content).hexdigest()
        why = _json({"query_terms": terms, "term_matches": matches, "total_words": total})
        head = _json({"id": name, "version": version, "content": content.decode()})
        parts.append(f'{head[:-1]},"score":{score_text(matches, total)},"tokens":{tokens},"why":{why}}}')
    selection = {
        "query": query,
        "budget": budget,
        "tokens_used": used,
        "documents_considered": len(files),
        "documents_selected": len(parts),
        "documents_excluded_by_budget": len(files) - len(parts),
    }
    return f'{{"documents":[{",".join(parts)}],"selection":{_json(selection)}}}\n'


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
