"""Mutators that make elements equal, or almost: where an order is unspecified, backends choose differently."""

from __future__ import annotations

import random
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fuzzer.mutate.base import AtPlaces, FiniteFloat, InputMutator, OnInput, free, free_float, register
from fuzzer.mutate.floats import copy_of, edited, saturated, ulp_step
from fuzzer.mutate.randomness import KEY_LIMIT, draws, new_key, permutation
from fuzzer.mutate.where import Axis, Key, Place, propose_where
from fuzzer.seeds.schema import InputSpec

TIE_COUNTS = (2, 2, 3, 4, 8, 16, 64)
TIE_PLACES: tuple[Place, ...] = ("some", "line", "line", "row", "window")

#: Which element is copied. The largest is what argmax, topk and NMS decide on.
Source = Literal["first", "max", "min"]


def source_value(tensor: Tensor, source: Literal["max", "min"]) -> Tensor:
    """The largest or smallest real of `tensor` that is no NaN (the first of equal ones), as a tensor of one element."""
    flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)
    keys = flat.double().numpy() * (1 if source == "max" else -1)
    return flat[int(np.where(np.isnan(keys), -np.inf, keys).argmax())].reshape(1)


class TieParams(AtPlaces):
    source: Source


@register
class Ties(InputMutator[TieParams]):
    """Copies one value to several places."""

    name = "ties"
    params_type = TieParams

    def suits(self, spec: InputSpec) -> bool:
        return free(spec)

    def pick(self, seed: object, name: str, shape: tuple[int, ...], rng: random.Random) -> TieParams:
        where = propose_where(shape, rng, TIE_PLACES, TIE_COUNTS)
        return TieParams(input=name, where=where, source=rng.choice(("first", "max", "max", "min")))

    def alter(self, spec: InputSpec, tensor: Tensor, params: TieParams) -> Tensor:
        if tensor.numel() == 0:
            return copy_of(tensor)
        value = None if params.source == "first" else source_value(tensor, params.source)
        return edited(tensor, params.where, lambda at: (at[:1] if value is None else value).expand_as(at))


class NearTieParams(TieParams):
    spread: Annotated[int, Field(ge=1, le=1024)]  # at most this many ULP to either side
    key: Key


@register
class NearTies(InputMutator[NearTieParams]):
    """Sets several places to one value and its neighbours, 0 to `spread` ULP away."""

    name = "near_ties"
    params_type = NearTieParams

    def suits(self, spec: InputSpec) -> bool:
        return free_float(spec)

    def pick(self, seed: object, name: str, shape: tuple[int, ...], rng: random.Random) -> NearTieParams:
        return NearTieParams(
            input=name,
            where=propose_where(shape, rng, TIE_PLACES, TIE_COUNTS),
            source=rng.choice(("first", "max", "max", "min")),
            spread=rng.choice((1, 1, 1, 2, 4, 64)),
            key=new_key(rng),
        )

    def alter(self, spec: InputSpec, tensor: Tensor, params: NearTieParams) -> Tensor:
        if tensor.numel() == 0:
            return copy_of(tensor)
        value = None if params.source == "first" else source_value(tensor, params.source)

        def neighbours(at: Tensor) -> Tensor:
            words = draws(params.key, len(at)) % np.uint64(2 * params.spread + 1)
            steps = torch.from_numpy(words.astype(np.int64)) - params.spread
            return ulp_step((at[:1] if value is None else value).expand_as(at), steps)

        return edited(tensor, params.where, neighbours)


class BlockParams(AtPlaces):
    value: FiniteFloat | None  # None: the block's own first element


@register
class ConstantBlock(InputMutator[BlockParams]):
    """Sets a row, slab, window or the whole tensor to one value. Integers keep to values that they already hold."""

    name = "constant_block"
    params_type = BlockParams

    def suits(self, spec: InputSpec) -> bool:
        return free(spec)

    def pick(self, seed: object, name: str, shape: tuple[int, ...], rng: random.Random) -> BlockParams:
        where = propose_where(shape, rng, ("row", "slab", "window", "all", "all"), (2, 3, 4, 8, 16, 32))
        return BlockParams(input=name, where=where, value=rng.choice((None, None, 0.0, 0.1, 1.0, -1.0)))

    def alter(self, spec: InputSpec, tensor: Tensor, params: BlockParams) -> Tensor:
        def constant(at: Tensor) -> Tensor:
            if params.value is None or not free_float(spec):
                return at[:1].expand_as(at)
            return saturated(torch.full(at.shape, params.value, dtype=torch.float64), at.dtype)

        return edited(tensor, params.where, constant)


class RepeatParams(OnInput):
    axis: Axis
    distinct: Annotated[int, Field(ge=1, le=4096)]
    key: Key
    spread: Annotated[int, Field(ge=0, le=1024)] = 0  # float inputs: each element then moved by at most so many ULP


@register
class PermutedDuplicates(InputMutator[RepeatParams]):
    """Repeats the first `distinct` slices along an axis until it is full, then shuffles them; exactly or nearly."""

    name = "permuted_duplicates"
    params_type = RepeatParams

    def suits(self, spec: InputSpec) -> bool:
        return free(spec)

    def pick(self, seed: object, name: str, shape: tuple[int, ...], rng: random.Random) -> RepeatParams:
        axes = [i for i, side in enumerate(shape) if side > 1] or [0]
        axis = rng.choice(axes)
        side = shape[axis] if shape else 1
        distinct = min(rng.choice((1, 2, 3, max(side // 2, 1))), 4096)
        return RepeatParams(input=name, axis=axis, distinct=distinct, key=new_key(rng), spread=rng.choice((0, 0, 1, 4)))

    def alter(self, spec: InputSpec, tensor: Tensor, params: RepeatParams) -> Tensor:
        if tensor.numel() == 0 or tensor.dim() == 0:
            return copy_of(tensor)
        axis = params.axis % tensor.dim()
        index = permutation(params.key, tensor.shape[axis]) % params.distinct
        out = tensor.detach().index_select(axis, torch.from_numpy(index)).contiguous()
        if params.spread == 0 or not out.is_floating_point():
            return out
        words = draws(params.key + 1 if params.key + 1 < KEY_LIMIT else 0, out.numel()) % np.uint64(
            2 * params.spread + 1
        )
        return ulp_step(out, torch.from_numpy(words.astype(np.int64)).reshape(out.shape) - params.spread)
