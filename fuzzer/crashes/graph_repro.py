"""The `repro.py` of a crash that was reduced to a graph with one output: short enough to be read in an issue.

What a maintainer asks for is in sight: the module in plain torch calls, its inputs, how the target runs, the float64
answer beside both, the tolerance. Nothing but torch (and ONNX Runtime) is imported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from fuzzer.crashes.crash import Crash
from fuzzer.models.graph import Graph, Node, operator_named
from fuzzer.reduce.case import leaves_of
from fuzzer.trees import ROOT
from fuzzer.verify.verdict import Kind

#: Kind of difference → where a (reference) and b (target) differ, both of one shape.
_DIFFERENT: Mapping[str, str] = {
    Kind.VALUE: "~((a == b) | (a != a) & (b != b)) & ~((a - b).abs() <= {allowed})",
    Kind.NONFINITE: "~(a.isfinite() & b.isfinite()) & (a != b) & ~((a != a) & (b != b))",
    Kind.INTEGER: "a != b",
    Kind.SHAPE: "torch.tensor(False)",
    Kind.SIGNED_ZERO: "(a == 0) & (b == 0) & (a.signbit() != b.signbit())",
}
_RANDOM = torch.Tag.nondeterministic_seeded

_MAIN = """def main():
    print(f"torch {{torch.__version__}}")
    torch.manual_seed({seed})
    wide = [x.double() if x.is_floating_point() else x for x in inputs().values()]
    try:
        with torch.no_grad():
            answers = {{
                "{reference}": {build}(*inputs().values()),
                "{target}": target({build}.eval(), inputs()),
                "float64": {build}.double()(*wide),
            }}
    except Exception as error:  # another version may refuse the module, or a device be missing
        print(f"cannot run here: {{error}}")
        return 2
    for name, answer in answers.items():
        print(f"{{name}}: {{answer}}")
    a, b, _ = ({one} for x in answers.values())
    differ = a.shape != b.shape or bool(({different}).any())
    print("they differ" if differ else "the difference is gone")
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
"""


def plain_graph(crash: Crash) -> Graph | None:
    """The crash's graph with its one output as the whole answer, where the short script can show it; else None."""
    model = crash.seed["model"]
    if model.get("source") != "graph" or crash.kind not in _DIFFERENT or crash.reference != "eager:cpu":
        return None
    graph = Graph.from_json(model["graph"])
    outputs = leaves_of(graph.output)
    random = any(map(_draws, graph.nodes))
    return replace(graph, output=f"%{outputs[0][1]}") if len(outputs) == 1 and not random else None


def _draws(node: Node) -> bool:
    """Whether a node draws random numbers; one that may drop elements (`dropout_p`) does not where it keeps all."""
    target = operator_named(node.op)
    if _RANDOM not in getattr(target, "tags", ()):
        return False
    for place, about in enumerate(target._schema.arguments):  # type: ignore[attr-defined]  # an operator of torch.ops
        if about.name == "dropout_p":
            given = node.args[place] if place < len(node.args) else node.kwargs.get("dropout_p", about.default_value)
            return bool(given != 0)
    return True


def at_root(crash: Crash) -> Crash:
    """The crash as it is where its one output is the whole answer."""
    return replace(crash, signature=replace(crash.signature, leaf=ROOT))


def target_lines(lines: Sequence[str]) -> list[str]:
    """The body of the target's function, with the module called on what is in the sample."""
    called = [re.sub(r"\bcall\((.+), (marked\(sample\)|sample)\)$", r"\1(*\2.values())", line) for line in lines]
    return [line.replace("raise CannotRun(", "raise RuntimeError(") for line in called]


def main_source(crash: Crash, build: str, allowed: str) -> str:
    """The function that runs both sides and compares them. `build`: makes the module; `allowed`: the tolerance."""
    kind = crash.kind
    floats = kind in (Kind.VALUE, Kind.NONFINITE)
    one = "x.cpu().to(torch.complex128 if x.is_complex() else torch.float64)" if floats else "x.cpu()"
    names = {"reference": crash.reference, "target": crash.target}
    return _MAIN.format(
        seed=crash.rng_seed, build=build, one=one, different=_DIFFERENT[kind].format(allowed=allowed), **names
    )
