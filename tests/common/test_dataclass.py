"""Our dataclasses behave as the standard ones do, and the functions of `dataclasses` work on them."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any, ClassVar

import pytest

from contextfold.common import dataclass as ours


@ours.dataclass(frozen=True, slots=True)
class Point:
    kind: ClassVar[str] = "point"
    x: int
    labels: list[str] = ours.field(default_factory=list, repr=False)
    seen: bool = ours.field(default=False, compare=False)

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x")


@ours.dataclass(slots=True)
class Counter:
    count: int = 0


def test_instances_compare_hash_and_print_by_their_fields() -> None:
    assert Point(1) == Point(x=1, labels=[], seen=True)
    assert Point(1) != Point(2)
    assert repr(Point(1, ["a"])) == "Point(x=1, seen=False)"
    assert hash(Point(1, ())) == hash(Point(1, (), True))  # type: ignore[arg-type]
    assert Point.kind == Point(3).kind == "point"
    match Point(4, ["b"]):
        case Point(x, labels):
            assert (x, labels) == (4, ["b"])


def test_every_instance_has_its_own_default_list() -> None:
    first, second = Point(1), Point(1)
    first.labels.append("a")
    assert second.labels == []


def test_only_an_instance_that_is_not_frozen_can_be_changed() -> None:
    point: Any = Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    counter = Counter()
    counter.count += 1
    assert counter == Counter(1)
    with pytest.raises(TypeError):
        hash(counter)


@pytest.mark.parametrize("arguments", [(), (1, [], False, 4)])
def test_wrong_arguments_are_refused_before_and_after_the_first_instance(arguments: tuple[object, ...]) -> None:
    point_class: Any = ours.dataclass(frozen=True, slots=True)(type("Made", (), {"__annotations__": {"x": "int"}}))
    for _ in range(2):
        with pytest.raises(TypeError):
            point_class(*arguments)
        assert point_class(1).x == 1
    with pytest.raises(ValueError, match="x"):
        Point(-1)


def test_field_objects_are_created_once_for_a_class_and_its_subclasses() -> None:
    class Inherits(Point):
        """Has the fields of its base."""

    inherited = dataclasses.fields(Inherits)
    assert [each.name for each in inherited] == list(Point.__match_args__)
    assert all(one is other for one, other in zip(inherited, dataclasses.fields(Point), strict=True))


def test_copies_and_replacements_are_equal_to_the_original() -> None:
    point = Point(1, ["a"])
    assert point == copy.deepcopy(point) == pickle.loads(pickle.dumps(point)) == ours.replace(point)
    assert ours.replace(point, x=2) == Point(2, ["a"]) == dataclasses.replace(point, x=2)
    assert dataclasses.asdict(point) == {"x": 1, "labels": ["a"], "seen": False}
    assert [each.name for each in ours.fields(Point)] == [each.name for each in dataclasses.fields(Point)]
