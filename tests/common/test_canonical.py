"""The two encoders of canonical JSON agree, and encoded values are decoded to the same values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contextfold.common.canonical import Encodable, decode, encode, encode_plain

plain = st.recursive(
    st.text() | st.integers(-(2**64) + 1, 2**64 - 1) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(plain)
def test_both_encoders_give_the_same_text(value: Encodable) -> None:
    assert encode_plain(value) == encode(value)


@given(plain)
def test_an_encoded_value_is_decoded_to_the_same_value(value: Encodable) -> None:
    for pretty in (False, True):
        assert decode(encode(value, pretty=pretty).encode()) == value
