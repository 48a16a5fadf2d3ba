"""The intervention that proves what OpenVINO's choice of precision does: with float32 the disagreement is gone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fuzzer.diagnose.finding import Finding
from fuzzer.diagnose.interventions import Intervention, Variant, register
from fuzzer.diagnose.rerun import Change


@register
class OpenVinoFloat32(Intervention):
    """OpenVINO computes in bfloat16 where the processor can, unless it is told otherwise."""

    name = "openvino-float32"
    changed = "OpenVINO told to compute in float32"
    confirms = ("numeric/reduced-precision", "numeric/wrong-value", "numeric/approximation", "numeric/accumulation")

    def applies(self, finding: Finding) -> bool:
        return finding.spec.runtime == "openvino" and finding.spec.options.get("precision") != "f32"

    def proves(self, label: str) -> str:
        return "numeric/reduced-precision"

    def variants(self, finding: Finding) -> Iterable[Variant]:
        options = finding.spec.options | {"precision": "f32"}
        yield Variant(change=Change(target=str(replace(finding.spec, options=options))))
