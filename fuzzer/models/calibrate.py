"""Random weights made non-degenerate: activations of unit scale, and outputs that change with the input.

A freshly initialised network answers almost the same whatever it is asked (MobileNetV2 about 1e-9, ViT exactly 0), and
from equal answers nothing can be told. Here a few samples run through the module in step, and each layer is settled on
all of them before any goes on: data-dependent initialisation (Krähenbühl et al., arXiv 1511.06856; LSUV, 1511.06422).

- BatchNorm: running statistics become those of its input. One that ends a residual branch is made weak (`branches`).
- Linear, convolution, attention's output projection with a bias: each output channel gets mean zero (plus the bias
  that the constructor chose, such as the prior of a detection head) and at most unit deviation, most of them nearly
  that; without a bias, the whole output gets unit root mean square.
- Weights that start at zero, and free parameters that start as one constant near zero, are drawn anew.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from fuzzer.models.branches import Branches, WeakBranches
from fuzzer.models.lockstep import Lockstep

#: Below this ratio of deviation to root mean square an output counts as constant, and is not centred.
CONSTANT = 1e-3
#: Constant parameters below this are gates that a training run would open.
NEARLY_ZERO = 1e-3

Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Moments:
    """Count, sum and sum of squares for each channel, in float64."""

    count: int
    total: Tensor
    squares: Tensor

    @property
    def mean(self) -> Tensor:
        return self.total / self.count

    @property
    def variance(self) -> Tensor:
        return (self.squares / self.count - self.mean**2).clamp_min(0)


def moments(values: Tensor, channel: int) -> Moments:
    """Moments of `values` over all dimensions but `channel`."""
    flat = values.detach().double().movedim(channel, 0).flatten(1)
    return Moments(flat.shape[1], flat.sum(1), (flat**2).sum(1))


def pooled(parts: Sequence[Moments]) -> Moments:
    return Moments(
        sum(part.count for part in parts),
        torch.stack([part.total for part in parts]).sum(0),
        torch.stack([part.squares for part in parts]).sum(0),
    )


def calibrate(module: nn.Module, calls: Sequence[Call], seed: int) -> None:
    """Change the weights of `module` in place so that it is not degenerate on `calls`.

    Deterministic in the module, the calls and `seed`. One forward pass of each call, all live at once. Raises what the
    module raises.
    """
    generator = torch.Generator().manual_seed(seed)
    settings = torch.get_num_threads(), torch.backends.mha.get_fastpath_enabled()
    torch.set_num_threads(1)  # the order of summation, and so the result, must not depend on the machine
    torch.backends.mha.set_fastpath_enabled(False)  # it calls no submodule, so hooks would see nothing
    try:
        with torch.no_grad():
            _open_gates(module, generator)
            _settle_layers(module, calls)
    finally:
        torch.set_num_threads(settings[0])
        torch.backends.mha.set_fastpath_enabled(settings[1])


def _open_gates(module: nn.Module, generator: torch.Generator) -> None:
    for layer in module.modules():
        weight = layer._parameters.get("weight")
        projects = isinstance(layer, nn.Linear | _ConvNd)
        if weight is not None and weight.is_floating_point() and weight.numel() and not weight.any():
            if projects:
                fan_in = weight[0].numel()
                weight.copy_(torch.randn(weight.shape, generator=generator) / fan_in**0.5)
            else:
                weight.fill_(1.0)
        if type(layer).__module__.startswith("torch.nn."):
            continue
        for parameter in layer._parameters.values():
            if parameter is None or not parameter.is_floating_point() or parameter.numel() == 0:
                continue
            first = parameter.flatten()[0]
            if first.abs() < NEARLY_ZERO and bool((parameter == first).all()):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)


@dataclass(frozen=True)
class _Projection:
    """Parameters of a layer that maps channels to channels, and where its output has them."""

    layer: nn.Module
    channel: int
    weight: nn.Parameter
    bias: nn.Parameter | None

    def scale_and_shift(self, seen: Moments) -> tuple[Tensor, Tensor]:
        """Per channel, float64, such that `output * scale + shift` has the statistics wanted."""
        size = (seen.squares.sum() / (seen.count * seen.squares.numel())).sqrt()
        overall = seen.variance.mean().sqrt()
        zero = torch.zeros_like(seen.total)
        if self.bias is None or overall < CONSTANT * size:
            return (1 / size).expand_as(zero).clone(), zero
        # Never more than the layer as a whole needs: a nearly constant channel would only be amplified noise.
        scale = 1 / seen.variance.sqrt().clamp_min(overall)
        return scale, self.bias.double() - seen.mean * scale

    def apply(self, scale: Tensor, shift: Tensor) -> None:
        """The same change in the parameters: W ← W·scale, b ← b·scale + shift for each output channel."""
        if isinstance(self.layer, _ConvTransposeNd):  # (in, out / groups, ...)
            groups = self.layer.groups
            split = self.weight.view(groups, self.weight.shape[0] // groups, self.weight.shape[1], -1)
            split.mul_(scale.view(groups, 1, -1, 1).to(split.dtype))
        else:
            self.weight.mul_(scale.view(-1, *[1] * (self.weight.dim() - 1)).to(self.weight.dtype))
        if self.bias is not None:
            self.bias.copy_(self.bias.double() * scale + shift)

    def change(self, values: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        shape = [1] * values.dim()
        shape[self.channel] = -1
        return (values.double() * scale.view(shape) + shift.view(shape)).to(values.dtype)


def _projection(layer: nn.Module) -> _Projection | None:
    owner, channel = layer, -1
    if isinstance(layer, nn.MultiheadAttention):
        owner = layer.out_proj  # used through its parameters, never called
    elif isinstance(layer, _ConvNd):
        channel = -1 - len(layer.kernel_size)
    elif not isinstance(layer, nn.Linear):
        return None
    weight, bias = owner._parameters.get("weight"), owner._parameters.get("bias")
    # A parametrised weight (weight norm, say) is no parameter of the layer's and cannot be set.
    if not isinstance(weight, nn.Parameter) or not weight.is_floating_point():
        return None
    return _Projection(layer, channel, weight, bias)


def _settle_norm(layer: nn.Module, seen: Moments) -> None:
    """Running statistics from what was seen; no channel is amplified more than the layer as a whole."""
    mean, variance = seen.mean, seen.variance
    size = seen.squares.sum() / (seen.count * mean.numel())
    if variance.mean() < CONSTANT**2 * size:
        mean, variance = torch.zeros_like(mean), size.expand_as(variance)
    for name, value in (("running_mean", mean), ("running_var", variance.clamp_min(variance.mean()))):
        getattr(layer, name).copy_(value)


def _keeps_statistics(layer: nn.Module) -> bool:
    """BatchNorm of any kind, torchvision's frozen one included."""
    return isinstance(getattr(layer, "running_mean", None), Tensor) and isinstance(
        getattr(layer, "running_var", None), Tensor
    )


class _Layers:
    """Hooks that settle each layer the first time that the calls meet at it."""

    def __init__(self, module: nn.Module) -> None:
        self._projections: dict[Hashable, _Projection] = {}
        self._norms: dict[Hashable, nn.Module] = {}
        self._changes: dict[Hashable, tuple[Tensor, Tensor]] = {}
        # A layer that is called again (a head shared by several feature maps) stays as its first call left it.
        self._settled: set[Hashable] = set()
        self._lockstep = Lockstep(self._settle)
        self.branches = Branches()
        self._handles = []
        for layer in module.modules():
            if _keeps_statistics(layer):
                self._norms[id(layer)] = layer
                self._handles.append(layer.register_forward_pre_hook(self._before_norm))
                self._handles.append(layer.register_forward_hook(self._after_norm))
            elif (projection := _projection(layer)) is not None:
                self._handles.append(layer.register_forward_hook(self._after(projection)))
                self._projections[id(projection.weight)] = projection

    def run(self, calls: Sequence[Callable[[], None]]) -> None:
        try:
            self._lockstep.run(calls)
        finally:
            for handle in self._handles:
                handle.remove()

    def _settle(self, key: Hashable, parts: list[Any]) -> None:
        self._settled.add(key)
        seen = pooled(parts)
        if seen.count == 0 or not torch.isfinite(seen.squares).all() or not seen.squares.any():
            return
        with torch.no_grad():
            if key in self._norms:
                _settle_norm(self._norms[key], seen)
            else:
                self._changes[key] = self._projections[key].scale_and_shift(seen)
                self._projections[key].apply(*self._changes[key])

    def _before_norm(self, layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        if id(layer) not in self._settled:
            self._lockstep.meet(id(layer), moments(arguments[0], 1))

    def _after_norm(self, layer: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        self.branches.saw(layer, output)

    def _after(self, projection: _Projection) -> Callable[[nn.Module, Any, Any], Any]:
        # Two layers may share a weight; the first to be called settles it.
        key = id(projection.weight)

        def hook(layer: nn.Module, arguments: Any, output: Any) -> Any:
            if key in self._settled:
                return None
            values = output[0] if isinstance(output, tuple) else output
            self._lockstep.meet(key, moments(values, projection.channel))
            if key not in self._changes:
                return None
            changed = projection.change(values, *self._changes[key])
            return (changed, *output[1:]) if isinstance(output, tuple) else changed

        return hook


def _settle_layers(module: nn.Module, calls: Sequence[Call]) -> None:
    threads = torch.get_num_threads()
    layers = _Layers(module)

    def one(call: Call) -> Callable[[], None]:
        def forward() -> None:
            torch.set_num_threads(threads)  # kept by each thread for itself, as is the grad mode
            with torch.no_grad(), WeakBranches(layers.branches):
                module(*call[0], **call[1])

        return forward

    layers.run([one(call) for call in calls])
