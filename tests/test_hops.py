"""The tool that counts hops names functions of this code; a moment without one could not be seen."""

from __future__ import annotations

import importlib
from functools import reduce

import pytest

from tools import hops

OUTSIDE = {*hops.OUTSIDE.values(), hops.PUBLISHED}
MOMENTS = [(walk, moment) for walk, moments in hops.WALKS.items() for moment in moments]


def exists(name: str) -> bool:
    module, _, function = name.partition(":")
    try:
        reduce(getattr, function.split("."), importlib.import_module(f"contextfold.{module}"))
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize(("walk", "moment"), MOMENTS)
def test_each_moment_names_a_function_that_exists(walk: str, moment: str) -> None:
    names = hops.WALKS[walk][moment]
    assert any(name in OUTSIDE or exists(name) for name in names)


@pytest.mark.parametrize("walk", hops.BEGINS)
def test_each_beginning_names_a_function_that_exists(walk: str) -> None:
    assert any(map(exists, hops.BEGINS[walk]))
