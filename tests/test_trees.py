"""Paths of leaves, and maps over nested values."""

from __future__ import annotations

import math
from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fuzzer.trees import fill, flatten, map_tensors

Pair = namedtuple("Pair", ["first", "second"])
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
NESTED = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


@dataclass(frozen=True)
class Output:
    logits: Tensor
    hidden: list[Tensor]
    note: str = "n"


def leaves_in_order(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves_in_order(item)]
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in leaves_in_order(item)]
    return [value]


class TestFlatten:
    def test_paths_are_what_a_reader_would_type(self) -> None:
        x = torch.zeros(1)
        detection = [{"boxes": x, "labels": x}]
        assert list(flatten(detection)) == ["[0].boxes", "[0].labels"]
        assert list(flatten(Output(x, [x, x]))) == [".logits", ".hidden[0]", ".hidden[1]", ".note"]
        assert list(flatten((x, Pair(x, x)))) == ["[0]", "[1][0]", "[1][1]"]
        assert list(flatten({"a b": x, 3: x, "3": x})) == ["['a b']", "[3]", "['3']"]

    @pytest.mark.parametrize("lone", [None, True, 3, math.inf, "text", torch.zeros(2)])
    def test_a_lone_leaf_is_the_root(self, lone: Any) -> None:
        assert list(flatten(lone)) == ["$"]
        assert flatten(lone)["$"] is lone

    @given(NESTED)
    def test_no_leaf_is_lost_and_their_order_is_kept(self, value: Any) -> None:
        found = list(flatten(value).values())
        wanted = leaves_in_order(value)
        assert len(found) == len(wanted)
        assert all(a is b for a, b in zip(found, wanted, strict=True))

    def test_torch_s_own_return_types_are_walked(self) -> None:
        assert list(flatten(torch.ones(3).sort())) == ["[0]", "[1]"]

    def test_what_is_neither_leaf_nor_container_is_the_text_of_its_type(self) -> None:
        assert flatten([{1, 2}]) == {"[0]": "<builtins.set>"}

    @pytest.mark.parametrize("empty", [[], (), {}])
    def test_an_empty_container_has_no_leaves(self, empty: Any) -> None:
        assert flatten([empty]) == {}


class TestFill:
    def test_every_name_is_replaced_by_its_value(self) -> None:
        assert fill({"args": [["a"], "b"], "kwargs": {"k": "a"}}, {"a": 1, "b": 2}) == {
            "args": [[1], 2],
            "kwargs": {"k": 1},
        }

    def test_values_that_are_no_names_stay(self) -> None:
        assert fill(["a", 3, None, True], {"a": "b", "b": 0}) == ["b", 3, None, True]

    def test_a_name_without_a_value_is_an_error(self) -> None:
        with pytest.raises(KeyError):
            fill(["c"], {})


class TestMapTensors:
    @pytest.mark.parametrize(
        "value",
        [
            torch.ones(2),
            [torch.ones(2), {"a": torch.ones(2), "b": "text"}],
            Pair(torch.ones(2), None),
            OrderedDict(a=torch.ones(2)),
            Output(torch.ones(2), [torch.ones(2)]),
            [Output(torch.ones(2), [torch.ones(2)])],
            torch.ones(2).sort(),
        ],
    )
    def test_every_tensor_that_flatten_finds_is_changed_and_containers_keep_their_type(self, value: Any) -> None:
        mapped = map_tensors(value, lambda tensor: tensor + 1)
        assert type(mapped) is type(value)
        before, after = flatten(value), flatten(mapped)
        assert list(after) == list(before)
        for path, leaf in before.items():
            if isinstance(leaf, Tensor):
                assert torch.equal(after[path], leaf + 1)  # type: ignore[arg-type]
            else:
                assert after[path] is leaf

    def test_a_mapping_unknown_to_torch_is_walked_too(self) -> None:
        mapped = map_tensors(UserDict(a=torch.zeros(1)), lambda tensor: tensor + 1)
        assert mapped == {"a": torch.ones(1)}

    def test_the_original_is_left_alone(self) -> None:
        original = Output(torch.zeros(1), [torch.zeros(1)])
        map_tensors(original, lambda tensor: tensor + 1)
        assert original.logits.item() == original.hidden[0].item() == 0
