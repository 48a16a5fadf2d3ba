"""The stage ladder: the target's own stages from the first to the last; the first that shows the drift is its stage.

torch.compile: Dynamo, AOTAutograd, Inductor's decompositions, Inductor; within Inductor its passes are switched off,
together and then one by one. ONNX Runtime: no graph optimisation (then it is the export or the kernels), basic,
extended, layout, all; then the optimisers by name, by halves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from fuzzer.backends.adapted import Adaptation
from fuzzer.backends.spec import BackendSpec
from fuzzer.diagnose.finding import Finding, Seen
from fuzzer.diagnose.rerun import CannotRerun, Change, Rerun

#: What it means that drift enters at a stage, for those whose names do not say it.
STAGES = {
    "dynamo": "the graph that Dynamo captures, run operator by operator, shows it",
    "autograd": "AOTAutograd's graph, run operator by operator, shows it; Dynamo's does not",
    "decompositions": "Inductor's decompositions, run operator by operator, show it; AOTAutograd's graph does not",
    "export or kernels": "the exported model shows it without any graph optimisation",
}
_CARRIED = ("dynamic", "fullgraph", "tf32")
_OPT = ("none", "basic", "extended", "layout", "all")
#: Switches of Inductor that turn a group of its passes off.
INDUCTOR_PASSES: dict[str, dict[str, object]] = {
    "pattern matcher": {"pattern_matcher": False},
    "joint graph passes": {"joint_graph_constant_folding": False},
    "fusion": {"max_fusion_size": 1, "epilogue_fusion": False},
}
#: ONNX Runtime's graph optimisers, by the names that it takes, with the level from which they run.
OPTIMIZERS: dict[str, tuple[str, ...]] = {
    "basic": tuple(
        """
        ConstantFolding EliminateIdentity EliminateSlice UnsqueezeElimination EliminateDropout ExpandElimination
        CastElimination CastChainElimination PreShapeNodeElimination NoopElimination DivMulFusion FuseReluClip
        GemmSumFusion GemmTransposeFusion NotWhereFusion ConvAddFusion ConvMulFusion ConvBNFusion Pad_Fusion
        MatMul_BatchNormalization_Fusion ClipQuantRewrite ReluQuantRewrite LabelEncoderFusion
        CommonSubexpressionElimination ConstantSharing ReshapeFusion FreeDimensionOverrideTransformer
        GeluFusionL1 LayerNormFusionL1 TransposeOptimizer DoubleQDQPairsRemover
        """.split()
    ),
    "extended": tuple(
        """
        GeluFusionL2 LayerNormFusionL2 SimplifiedLayerNormFusion BiasGeluFusion FastGeluFusion QuickGeluFusion
        BiasSoftmaxFusion BiasDropoutFusion SkipLayerNormFusion BiasSkipLayerNormFusion AttentionFusion
        EmbedLayerNormFusion GatherToSplitFusion GatherToSliceFusion MatmulTransposeFusion MatMulAddFusion
        MatMulScaleFusion MatMulActivationFusion MatMulIntegerToFloatFusion DynamicQuantizeMatMulFusion
        GemmActivationFusion ConvActivationFusion ConvAddActivationFusion GroupQueryAttentionFusion SwiGluFusion
        """.split()
    ),
    "layout": tuple(
        """
        NchwcTransformer NhwcTransformer ConvAddActivationFusion
        """.split()
    ),
    "all": (),
}


@dataclass(frozen=True)
class Rung:
    """A stage in words, and the backend that ends with it."""

    stage: str
    backend: str


@dataclass
class Ladder:
    """What the rungs showed, from the first on; `stage` is the first that shows the drift, empty where none does."""

    climbed: list[tuple[Rung, Seen, str]] = field(default_factory=list)
    stage: str = ""
    #: What switches the culprit off: the stage before it, or a pass or optimiser by name.
    without: list[tuple[str, Change]] = field(default_factory=list)

    @property
    def sentences(self) -> list[str]:
        return [f"{rung.backend}: {_WORDS[seen]}{f' ({why})' if why else ''}" for rung, seen, why in self.climbed]


_WORDS = {
    Seen.GONE: "agrees",
    Seen.UNCHANGED: "shows it",
    Seen.OTHER: "differs otherwise",
    Seen.NOTHING: "not compared",
}


def rungs(target: str) -> list[Rung]:
    """The stages of a backend, the last of them the backend itself; empty where it has none to tell apart."""
    spec = BackendSpec.parse(target)
    if spec.runtime in ("dynamo", "aot_eager", "inductor"):
        carried = {name: value for name, value in spec.options.items() if name in _CARRIED}
        steps = [
            Rung("dynamo", str(replace(spec, runtime="dynamo", options=carried))),
            Rung("autograd", str(replace(spec, runtime="aot_eager", options=carried))),
            Rung("decompositions", str(replace(spec, runtime="aot_eager", options=carried | {"decomp": "true"}))),
            Rung("inductor", target),
        ]
        last = {"dynamo": 1, "aot_eager": 3 if spec.options.get("decomp") == "true" else 2, "inductor": 4}
        return steps[: last[spec.runtime]]
    if spec.runtime == "onnxruntime":
        most = _OPT.index(spec.options.get("opt", "all"))
        first = "export or kernels"
        return [
            Rung(first if i == 0 else f"{opt} optimisations", str(replace(spec, options={**spec.options, "opt": opt})))
            for i, opt in enumerate(_OPT[: most + 1])
        ]
    return []


def climb(finding: Finding, rerun: Rerun, late: Callable[[], bool]) -> Ladder:
    """Find the first rung that shows the drift, then look inside that stage. Stops where `late()`.

    That the last one, the target itself, shows it is known. Most faults of `torch.compile` are Inductor's own: its
    rungs are gone down, until one agrees. Most of ONNX Runtime are the export's or a kernel's: its rungs are gone up.
    """
    found = Ladder()
    *steps, last = rungs(finding.target)
    down = finding.spec.runtime != "onnxruntime"
    shown, before = last, None
    for rung in reversed(steps) if down else steps:
        if late():
            return found
        seen, why = _ask(finding, rerun, Change(target=rung.backend))
        found.climbed.insert(0 if down else len(found.climbed), (rung, seen, why))
        if seen in (Seen.UNCHANGED, Seen.OTHER):
            shown = rung
            if not down:
                break
        elif seen is Seen.GONE:
            before = rung
            if down:
                break
    if shown is last:
        found.climbed.append((last, Seen.UNCHANGED, ""))
    found.stage = shown.stage
    if before is not None:
        found.without.append((f"{before.backend} in its place", Change(target=before.backend)))
    if found.stage == "inductor":
        _inside_inductor(finding, rerun, late, found)
    elif found.stage.endswith("optimisations"):
        _inside_onnxruntime(finding, rerun, late, found, shown)
    return found


def _ask(finding: Finding, rerun: Rerun, change: Change) -> tuple[Seen, str]:
    try:
        return finding.judged(rerun(finding.sample, change)), ""
    except CannotRerun as error:
        return Seen.NOTHING, str(error)[:200]


def _inside_inductor(finding: Finding, rerun: Rerun, late: Callable[[], bool], found: Ladder) -> None:
    """All passes off at once; where that helps, each of them alone."""
    without = {name: Change(adaptation=Adaptation(inductor=switches)) for name, switches in INDUCTOR_PASSES.items()}
    every = {name: value for switches in INDUCTOR_PASSES.values() for name, value in switches.items()}
    if late():
        return
    if _ask(finding, rerun, Change(adaptation=Adaptation(inductor=every)))[0] is not Seen.GONE:
        found.stage = "inductor: lowering"
        return
    found.stage = "inductor: passes"
    for name, change in without.items():
        if late():
            return
        if _ask(finding, rerun, change)[0] is Seen.GONE:
            found.stage = f"inductor: {name}"
            found.without.insert(0, (f"Inductor's {name} off", change))
            return


def _inside_onnxruntime(finding: Finding, rerun: Rerun, late: Callable[[], bool], found: Ladder, shown: Rung) -> None:
    """The optimiser that has to be off, by halves; the stage's own come first."""
    level = found.stage.split()[0]
    target = shown.backend
    names = [*OPTIMIZERS[level]]
    if not names or not _gone_without(finding, rerun, target, names):
        return
    while len(names) > 1:
        if late():
            return
        half = names[: len(names) // 2]
        names = half if _gone_without(finding, rerun, target, half) else names[len(names) // 2 :]
    if _gone_without(finding, rerun, target, names):
        found.stage = f"{found.stage}: {names[0]}"
        change = Change(adaptation=Adaptation(optimizers=tuple(names)))
        found.without.insert(0, (f"ONNX Runtime's {names[0]} off", change))


def _gone_without(finding: Finding, rerun: Rerun, target: str, names: Sequence[str]) -> bool:
    change = Change(target=target, adaptation=Adaptation(optimizers=tuple(names)))
    return _ask(finding, rerun, change)[0] is Seen.GONE
