"""A ready issue for the project to which a crash belongs, in that project's own form. Nothing is sent."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import jinja2

from fuzzer.backends.spec import BackendSpec
from fuzzer.crashes.crash import Crash
from fuzzer.crashes.store import read_script
from fuzzer.triage.diagnosis import mitigation_lines
from fuzzer.triage.table import blame_sentence, summary

TEMPLATES = Path(__file__).parent / "templates"
#: Files that a reader of the issue needs beside the script, where the script reads them.
_BESIDE = ("inputs.safetensors", "weights.safetensors", "model.onnx")
_EXPORT_STAGES = ("export", "exporter")


class Project(StrEnum):
    """Where an issue belongs."""

    PYTORCH = "pytorch/pytorch"
    ONNXRUNTIME = "microsoft/onnxruntime"
    VISION = "pytorch/vision"

    @property
    def form(self) -> str:
        """The name of its template."""
        return f"{self.partition('/')[2]}.md.j2"

    @property
    def new_issue(self) -> str:
        return f"https://github.com/{self}/issues/new/choose"


@dataclass(frozen=True)
class Draft:
    """`reason`: why it belongs to `project`. `beside`: the files to attach."""

    project: Project
    reason: str
    title: str
    body: str
    beside: tuple[str, ...]

    @property
    def text(self) -> str:
        """What `triage draft` prints: where to, why, title, and the body below a line."""
        attach = f"Attach: {', '.join(self.beside)}\n" if self.beside else ""
        head = f"To: {self.project.new_issue}\nBecause: {self.reason}\n{attach}Title: {self.title}\n"
        return f"{head}{'-' * 72}\n{self.body.rstrip()}\n"


def project_of(crash: Crash) -> tuple[Project, str]:
    """Where the crash belongs and why, by the side to blame, its runtime, the stage and the operator's library."""
    target = BackendSpec.parse(crash.target)
    wrong = crash.reference if crash.blame == "reference" else crash.target
    runtime = BackendSpec.parse(wrong).runtime
    if runtime == "eager" and "torchvision::" in " ".join(crash.evidence):
        return Project.VISION, f"{wrong} is to blame, and the operator is torchvision's"
    if runtime == "onnxruntime" and crash.stage in _EXPORT_STAGES:
        return Project.PYTORCH, f"the difference starts in the export to ONNX, which is PyTorch's (stage {crash.stage})"
    if crash.blame in ("target", "reference"):
        return _project(runtime), f"{wrong} is to blame: it is the side that is far from float64"
    return _project(target.runtime), f"the blame is {crash.blame}; {crash.target} is the side under test"


def draft(crash: Crash) -> Draft:
    """The issue. The crash is one that was read from a folder: its script is part of the text.

    Raises CrashFolderError where the folder's `repro.py` cannot be read.
    """
    script = read_script(crash)
    helpful = tuple(one for one in crash.mitigations if one.get("restores"))
    crash = replace(crash, reference=_backend(crash.reference), target=_backend(crash.target), mitigations=helpful)
    project, reason = project_of(crash)
    beside = tuple(name for name in _BESIDE if name in crash.files and name in script)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )  # no escaping: this is Markdown, which `_plain` and `fence` make safe
    body = environment.get_template(project.form).render(_facts(crash), script=script, fence=_fence(script))
    return Draft(project, reason, _title(crash), body, beside)


def _project(runtime: str) -> Project:
    return Project.ONNXRUNTIME if runtime == "onnxruntime" else Project.PYTORCH


def _title(crash: Crash) -> str:
    wrong = crash.reference if crash.blame == "reference" else crash.target
    other = crash.target if crash.blame == "reference" else crash.reference
    return _plain(f"{wrong} differs from {other}: {crash.label.sentence}")


def _backend(text: str) -> str:
    """A backend without the path of an interpreter, which is nobody else's business."""
    return str(BackendSpec.parse(text).under(""))


def _facts(crash: Crash) -> dict[str, Any]:
    difference = crash.difference
    sides = [
        (crash.reference, difference["reference"], difference["drift_reference"]),
        (crash.target, difference["target"], difference["drift_target"]),
    ]
    environment = crash.environment
    return {
        "label": crash.label.name,
        "confirmed": crash.label.confirmed,
        "sentence": crash.label.sentence,
        "reference": crash.reference,
        "target": crash.target,
        "leaf": _plain(crash.leaf),
        "index": list(difference["index"]) if difference["index"] is not None else None,
        "message": _plain(str(difference["message"])),
        "evidence": [_plain(line) for line in crash.evidence],
        "sides": [(name, _plain(str(value)), drift) for name, value, drift in sides],
        "truth": _plain(str(difference["truth"])),
        "blame": _plain(blame_sentence(crash)),
        "inputs": [_plain(summary(name, tensor)) for name, tensor in crash.inputs.items()],
        "versions": [(name, _plain(str(value))) for name, value in environment.items() if isinstance(value, str)],
        "environment": {name: _plain(str(value)) for name, value in environment.items()},
        "device": BackendSpec.parse(crash.target).device,
        "options": BackendSpec.parse(crash.target).options,
        "mitigations": [_plain(line) for line in mitigation_lines(crash)],
    }


def _plain(text: str) -> str:
    """Text from a crash folder in one line, without what Markdown or a terminal would act on."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return re.sub(r"([`<>|])", r"\\\1", " ".join(printable.split()))


def _fence(script: str) -> str:
    """A code fence longer than any in the script."""
    return "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", script)), default=0))
