"""Reduction: a finding on a smaller input. `recipe` drops mutations, `reduced` goes over the tensors themselves."""

from fuzzer.reduce.engine import Sample, Search
from fuzzer.reduce.passes import passes, reduced
from fuzzer.reduce.recipe import shrink_recipe
from fuzzer.reduce.size import Size, size_of
from fuzzer.reduce.space import Axes, Space, Values, space_of

__all__ = [
    "Axes",
    "Sample",
    "Search",
    "Size",
    "Space",
    "Values",
    "passes",
    "reduced",
    "shrink_recipe",
    "size_of",
    "space_of",
]
