"""The documentation against the code: what it tells a reader to type works, and nothing that exists is left out."""

from __future__ import annotations

import re
import shlex
import typing
from pathlib import Path

import click
import pytest
import torch
from pydantic import BaseModel

from fuzzer.backends.registry import backend_class, known
from fuzzer.cli import cli
from fuzzer.crashes.record import _Record
from fuzzer.crashes.replay import CrashState
from fuzzer.crashes.severity import SEVERITIES
from fuzzer.diagnose.label import TAXONOMY
from fuzzer.inputs import base_sample
from fuzzer.models import build_model
from fuzzer.mutate import mutator_names, mutators_for
from fuzzer.seeds import Seed, load_seed
from fuzzer.seeds.schema import (
    TASK_KINDS,
    Accept,
    Allow,
    Dim,
    InputSpec,
    ModelSpec,
    Mutators,
    Stage,
    Task,
    Tolerance,
    Weights,
)
from fuzzer.verify.verdict import Blame, Kind, Outcome

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "CHANGELOG.md",
    ROOT / "corpus/README.md",
    ROOT / "crashes/README.md",
]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    return [text for found, text in _BLOCK.findall(page(name)) if found == language]


def command_lines() -> list[tuple[str, str]]:
    """Every `xbfuzz …` that a reader may type: lines in blocks, and inline code; comments and `PATH` words cut off."""
    found = []
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        lines = [line.strip() for _, block in _BLOCK.findall(text) for line in block.splitlines()]
        lines += re.findall(r"`(xbfuzz [^`]+)`", _BLOCK.sub("", text))
        found += [(path.name, line) for line in lines if line.startswith("xbfuzz ")]
    return found


def seed_blocks() -> list[tuple[str, int]]:
    return [(name, i) for name in ("README.md", "docs/seeds.md") for i in range(len(blocks(name, "yaml")))]


def written_seed(name: str, i: int, folder: Path) -> Path:
    """The `i`-th YAML block of a page as a file, beside the Python file of the same page that it needs."""
    for text in blocks(name, "python"):
        file = re.match(r"# (\w+\.py)\n", text)
        assert file, f"a Python block of {name} does not say which file it is"
        (folder / file[1]).write_text(text, encoding="utf-8")
    (folder / "yolov5" / "models").mkdir(parents=True, exist_ok=True)
    for file_name in ("model.onnx", "model.pt2", "yolov5/models/yolo.py"):
        (folder / file_name).touch()  # named by a seed; whether it can be read is for whoever builds the model
    path = folder / "seed.yaml"
    path.write_text(blocks(name, "yaml")[i], encoding="utf-8")
    return path


@pytest.mark.parametrize(("where", "line"), command_lines())
def test_a_command_line_in_the_docs_is_one_that_the_program_takes(
    where: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuzzer.plugins.load_plugins", lambda names: [])  # the plug-ins of the docs are in test_plugins
    words = shlex.split(line, comments=True)[1:]
    own = [option for param in cli.params for option in param.opts] + ["--version", "--help"]
    while words and words[0].startswith("-"):
        assert words.pop(0) in own, f"{where}: {line}"
    if not words:
        return  # `xbfuzz --version`
    assert words[0] in cli.commands, f"{where}: there is no command {words[0]}"
    cli.commands[words[0]].make_context(words[0], words[1:])  # raises on options and values that do not exist


def test_a_wrong_option_would_be_noticed() -> None:
    with pytest.raises(click.NoSuchOption):
        cli.commands["run"].make_context("run", ["--bugdet", "1m"])


def test_the_docs_hold_command_lines_and_seeds() -> None:
    shown = {line.split()[1] for _, line in command_lines()}
    assert set(cli.commands) <= shown
    assert len(blocks("README.md", "yaml")) == 1
    sources = {re.search(r"source: (\w+)", text)[1] for text in blocks("docs/seeds.md", "yaml")}  # type: ignore[index]
    written = set(typing.get_args(ModelSpec.model_fields["source"].annotation))
    assert sources == written - {"graph", "stage"}  # which no user writes


@pytest.mark.parametrize(("name", "i"), seed_blocks())
def test_a_seed_in_the_docs_loads(name: str, i: int, tmp_path: Path) -> None:
    seed = load_seed(written_seed(name, i, tmp_path))
    assert seed.backends
    for text in (seed.reference, *seed.backends):
        runtime, _, _ = text.partition(":")
        assert backend_class(runtime)
    assert mutators_for(seed)  # raises on a mutator that does not exist


@pytest.mark.parametrize(("name", "i"), seed_blocks())
def test_a_builder_in_the_docs_builds_a_model_that_answers(name: str, i: int, tmp_path: Path) -> None:
    seed = load_seed(written_seed(name, i, tmp_path))
    if seed.model.source != "builder":
        pytest.skip("no builder")
    model = build_model(seed, None)
    answers = []
    for draw in (0, 1):
        args, kwargs = model.call(base_sample(seed, draw))
        assert model.module is not None
        answers.append(model.module(*args, **kwargs))
    assert torch.isfinite(answers[0]).all()
    assert not torch.equal(*answers)


def test_the_readme_seed_is_as_short_as_it_says() -> None:
    assert len(blocks("README.md", "yaml")[0].splitlines()) <= 12


@pytest.mark.parametrize(
    "model",
    [Seed, ModelSpec, Weights, InputSpec, Dim, Task, Stage, Allow, Accept, Mutators, Tolerance],
    ids=lambda m: m.__name__,
)
def test_every_field_of_a_seed_is_in_the_docs(model: type[BaseModel]) -> None:
    text = page("docs/seeds.md")
    assert [field for field in model.model_fields if not re.search(rf"\b{field}\b", text)] == []


def test_every_field_of_a_seed_has_a_row_of_its_own() -> None:
    text = page("docs/seeds.md")
    fields = {f for m in (Seed, ModelSpec, InputSpec, Dim, Stage) for f in m.model_fields}
    rows = "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    assert sorted(field for field in fields if f"`{field}`" not in rows) == []


def test_every_word_that_a_seed_may_choose_is_in_the_docs() -> None:
    text = page("docs/seeds.md")
    words = [*typing.get_args(InputSpec.model_fields["kind"].annotation)]
    words += typing.get_args(Weights.model_fields["kind"].annotation)
    words += TASK_KINDS
    words += mutator_names()
    assert [word for word in words if f"`{word}`" not in text] == []


@pytest.mark.parametrize(("heading", "model"), [("The seed", Seed), ("`dims`", Dim), ("`allow`", Allow)])
def test_a_default_in_the_docs_is_the_default(heading: str, model: type[BaseModel]) -> None:
    section = page("docs/seeds.md").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    for name, field in model.model_fields.items():
        default = field.default
        if isinstance(default, bool | int | float):
            row = next(line for line in section.splitlines() if line.startswith(f"| `{name}`"))
            shown = str(default).lower() if isinstance(default, bool) else f"{default:g}"
            assert row.split("|")[2].strip().strip("`") == shown


def test_every_backend_with_its_options_and_their_values_is_in_the_docs() -> None:
    text = page("docs/backends.md")
    for spec in known():
        found = backend_class(spec.runtime)
        if not found.__module__.startswith("fuzzer."):  # a plug-in of another test, or of docs/plugins.md
            continue
        row = next(line for line in text.splitlines() if line.startswith(f"| `{spec.runtime}`"))
        assert spec.device in row
        for option, values in found.options.items():
            assert f"`{option}`" in row
            described = next(line for line in text.splitlines() if line.startswith(f"| `{option}`"))
            assert all(f"`{value}`" in described for value in values)


def test_every_option_of_run_is_in_the_docs() -> None:
    text = page("docs/campaign.md")
    options = [name for param in cli.commands["run"].params for name in param.opts if name.startswith("--")]
    assert [name for name in options if f"| `{name}`" not in text] == []


def test_the_table_of_labels_is_the_taxonomy_in_its_order() -> None:
    rows = [line.split("|") for line in page("docs/taxonomy.md").splitlines() if line.startswith("| `")]
    assert [row[1].strip(" `") for row in rows] == list(TAXONOMY)
    for row, (label, entry) in zip(rows, TAXONOMY.items(), strict=True):
        # where the code asks for an intervention, the page has one
        needs = bool(entry.intervention)
        assert (row[4].strip() != "-") == needs, label


def test_kinds_outcomes_blame_and_severities_are_in_the_docs() -> None:
    verdict, campaign, taxonomy = (page(f"docs/{name}.md") for name in ("verdict", "campaign", "taxonomy"))
    assert [kind for kind in Kind if f"`{kind}`" not in verdict] == []
    assert [blame for blame in Blame if f"`{blame}`" not in verdict] == []
    assert [outcome for outcome in Outcome if f"`{outcome}`" not in campaign] == []
    assert [severity for severity in SEVERITIES if f"`{severity}`" not in taxonomy] == []


def test_states_and_fields_of_a_crash_are_in_the_docs() -> None:
    text = page("docs/crashes.md")
    assert [state for state in CrashState if f"| `{state}`" not in text] == []
    assert [field for field in _Record.model_fields if f"`{field}`" not in text] == []


def test_links_between_pages_lead_somewhere() -> None:
    for path in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_pages_keep_to_120_columns_outside_tables_and_output() -> None:
    for path in PAGES:
        prose = _BLOCK.sub("", path.read_text(encoding="utf-8"))
        long = [line for line in prose.splitlines() if len(line) > 120 and not line.startswith("|")]
        assert long == [], path.name
