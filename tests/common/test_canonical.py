"""The two encoders of canonical JSON agree, and what is encoded is read back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contextfold.common.canonical import Encodable, decode, encode, encode_plain

plain = st.recursive(
    st.text() | st.integers(-(2**64) + 1, 2**64 - 1) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(plain)
def test_plain_values_are_encoded_alike(value: Encodable) -> None:
    assert encode_plain(value) == encode(value)


@given(plain)
def test_what_is_encoded_is_read_back(value: Encodable) -> None:
    for pretty in (False, True):
        assert decode(encode(value, pretty=pretty).encode()) == value
