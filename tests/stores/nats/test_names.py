"""Every owner, path and name becomes a unique part of a subject, and can be read back from it unchanged."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from contextfold.fold.store import SessionKey
from contextfold.stores.nats.streams import SubjectNames, escape_part, unescape_part

NAMES = SubjectNames("contextfold")
# Lone surrogates are included, because paths may contain them.
texts = st.text(st.characters())
keys = st.builds(SessionKey, texts, texts, texts)


@given(texts)
def test_an_escaped_part_is_plain_and_can_be_unescaped(text: str) -> None:
    part = escape_part(text)
    assert re.fullmatch(r"[A-Za-z0-9_=-]+", part)
    assert unescape_part(part) == text


@given(keys, keys)
def test_two_keys_never_share_a_log(one: SessionKey, other: SessionKey) -> None:
    assert (NAMES.log_of(one) == NAMES.log_of(other)) == (one == other)
    assert NAMES.key_of(NAMES.log_of(one)) == one


@given(texts, texts)
def test_an_escaped_part_adds_no_level_to_a_subject(owner: str, branch_id: str) -> None:
    session = NAMES.session(SessionKey(owner, "p", "n"), "sess_1")
    assert NAMES.branch(session, branch_id).count(".") == "contextfold.owner.p.sess_1.branches.br".count(".")
    assert not re.search(r"[*>\s]", NAMES.branch(session, branch_id))
