"""What a user's builder tells of itself: forward's arguments, examples of them, whether its weights are its own.

To find out its code has to run, so that it runs in a process of its own (`python -m fuzzer.models.offer`), with a
deadline. The process answers with one line of JSON; nothing that it says is executed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fuzzer.errors import ModelError
from fuzzer.seeds.given import Example, Offer
from fuzzer.seeds.problems import shown

#: Seconds of wall time for importing a user's code and building its module twice.
DEADLINE_S = 300.0
ATTRIBUTE = "example_inputs"


def ask_builder(builder: str, folder: Path, deadline_s: float = DEADLINE_S) -> Offer:
    """What the builder `module:callable`, imported with `folder` in front, offers.

    Raises ModelError, one line, where its code fails, ends the process, or takes longer than the deadline.
    """
    command = [sys.executable, "-m", "fuzzer.models.offer", builder, str(folder)]
    environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=deadline_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise ModelError(f"{builder}: not built after {deadline_s:.0f} s") from error
    with contextlib.suppress(ValueError, KeyError, TypeError):
        said = json.loads(done.stdout.splitlines()[-1] if done.stdout else "")
        if "error" in said:
            raise ModelError(said["error"])
        return Offer(**said | {"examples": [Example(**example) for example in said["examples"]]})
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    raise ModelError(f"{builder}: its process ended with status {done.returncode}: {last}")


def offer_of(builder: str, folder: Path) -> Offer:
    """What the builder offers, asked in this process. Raises ModelError."""
    from fuzzer.models.contain import contained
    from fuzzer.models.sources import builder_module
    from fuzzer.seeds.schema import Seed

    def built(number: int) -> nn.Module:
        model = {"source": "builder", "path": ".", "builder": builder, "weights": {"kind": "random", "seed": number}}
        inputs = {"x": {"kind": "floats", "shape": [1]}}
        return builder_module(Seed.model_validate({"name": "model", "model": model, "inputs": inputs}).at(folder))

    module, other = built(0), built(1)
    with contained(builder, near=folder):
        arguments, needed = _arguments(module)
        examples, by_name = _examples(builder, _offered(module, builder), arguments)
        return Offer(arguments, needed, examples, _mostly_equal(module, other), by_name)


def _arguments(module: nn.Module) -> tuple[list[str], list[str]]:
    """The names of forward's arguments, and of those without a default; `*args` and `**kwargs` have none."""
    parameters = inspect.signature(module.forward).parameters.values()
    named = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    return [each.name for each in named], [each.name for each in named if each.default is each.empty]


def _offered(module: nn.Module, builder: str) -> Any:
    """`example_inputs` of the module, of what builds it, or of the file where that stands; None where there is none."""
    name, _, attribute = builder.partition(":")
    own = re.compile(rf"{re.escape(name)}(_[0-9a-f]{{8}})?")  # a lone file is imported under a name of its own
    home = next(
        (each for known, each in list(sys.modules.items()) if own.fullmatch(known)),
        sys.modules.get(type(module).__module__),
    )
    places = [module, getattr(home, attribute.partition(".")[0], None), home]
    found = next((getattr(place, ATTRIBUTE) for place in places if getattr(place, ATTRIBUTE, None) is not None), None)
    return found() if callable(found) else found


def _examples(builder: str, offered: Any, arguments: list[str]) -> tuple[list[Example], bool]:
    """Examples in the order of forward's arguments, and whether they must be given by name. Raises ModelError."""
    if offered is None:
        return [], False
    if isinstance(offered, Mapping):
        named = dict(offered)
    else:
        if not isinstance(offered, Iterable):
            raise ModelError(
                f"{builder}: `{ATTRIBUTE}` is {shown(offered)}; expected a tensor, a list of tensors, a mapping "
                "of names to tensors, or a function that returns one of these"
            )
        values = [offered] if isinstance(offered, Tensor) else list(offered)
        names = [*arguments, *(f"x{i}" for i in range(len(arguments), len(values)))]
        named = dict(zip(names, values, strict=False))
    for name, value in named.items():
        if not isinstance(value, Tensor):
            raise ModelError(
                f"{builder}: {ATTRIBUTE}: {name} is a {type(value).__name__}, not a tensor; write a seed with `call`"
            )
    by_name = isinstance(offered, Mapping) and list(named) != arguments[: len(named)]
    return [_example(name, value.detach()) for name, value in named.items()], by_name


def _example(name: str, value: Tensor) -> Example:
    real = value.float() if value.dtype.is_floating_point else value
    low = high = 0.0
    if not value.is_complex() and value.numel():
        finite = real[real.isfinite()]
        low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 0.0)
    return Example(name, list(value.shape), str(value.dtype).removeprefix("torch."), low, high)


def _mostly_equal(module: nn.Module, other: nn.Module) -> bool:
    """Whether two modules built with other random seeds share most of their parameters: those were not drawn."""
    theirs = dict(other.named_parameters())
    same = total = 0
    for name, value in module.named_parameters():
        total += value.numel()
        twin = theirs.get(name)
        if twin is not None and twin.shape == value.shape:
            same += int((value == twin).sum())
    return 2 * same >= total


def main() -> None:
    """Answer for the builder and the folder on the command line: one line of JSON on standard output."""
    builder, folder = sys.argv[1:3]
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the user's code prints is no answer
    try:
        answer = dataclasses.asdict(offer_of(builder, Path(folder)))
    except ModelError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), file=output, flush=True)


if __name__ == "__main__":
    main()
