"""What the keepers of a crash folder do with it: groups, known issues, decisions, tables for programs, drafts."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from crash_samples import builder_seed, pool_crash
from hypothesis import given
from hypothesis import strategies as st

from fuzzer.cli import cli
from fuzzer.crashes.crash import Crash
from fuzzer.crashes.edit import decide
from fuzzer.crashes.signature import Signature
from fuzzer.crashes.store import load_crash, write_crash
from fuzzer.diagnose import Label
from fuzzer.errors import CrashFolderError, XbfuzzError
from fuzzer.triage import KnownIssues, groups, load_known, rows, show, to_csv
from fuzzer.triage.draft import Project, draft, project_of
from fuzzer.triage.made import made_of
from fuzzer.triage.table import HEADINGS, Row

URL = "https://github.com/microsoft/onnxruntime/issues/1"


@pytest.fixture
def crash(tmp_path: Path) -> Crash:
    environment = {"torch": "2.14.1", "onnxruntime": "1.32.0", "os": "Linux-6.1-x86_64", "cpu": "Some CPU"}
    return pool_crash(builder_seed(tmp_path / "seeds"), environment=environment)


def named(crash: Crash, seed: str, **fields: Any) -> Crash:
    return replace(crash, signature=Signature(seed, "onnxruntime:cpu", "numeric", "$", "nonfinite"), **fields)


@pytest.fixture
def folder(crash: Crash, tmp_path: Path) -> Path:
    """A folder with one crash."""
    return write_crash(tmp_path / "crashes", crash).parent


def triage(folder: Path, *args: str) -> Result:
    """`xbfuzz triage`, as a user runs it; errors stay exceptions."""
    return CliRunner().invoke(cli, ["triage", "--crashes", str(folder), *args], catch_exceptions=False)


def test_groups_are_gravest_first_then_largest(crash: Crash) -> None:
    near, wrong, died = (Label.parse(text) for text in ("order/tie?", "numeric/wrong-value?", "execution/crash"))
    found = groups(
        [
            named(crash, "a", severity="decision", label=near),
            named(crash, "b", severity="wrong", label=wrong),
            named(crash, "c", severity="decision", label=near),
            named(crash, "d", severity="decision", label=Label.parse("order/nms")),
            named(crash, "e", severity="crash", label=died),
        ],
        "label",
    )
    assert [(group.name, group.severity, len(group.crashes)) for group in found] == [
        ("execution/crash", "crash", 1),
        ("numeric/wrong-value", "wrong", 1),
        ("order/tie", "decision", 2),
        ("order/nms", "decision", 1),
    ]


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("target", {"onnxruntime:cpu"}),
        ("seed", {"a", "b"}),
        ("stage", {"codegen", "-"}),
        ("operator", {"MaxPool2d", "-"}),
    ],
)
def test_crashes_group_by_whatever_is_known_of_them(crash: Crash, by: str, names: set[str]) -> None:
    points = [{"name": "0", "module": "ReLU"}, {"name": "1", "module": "MaxPool2d", "origin": True}]
    found = [named(crash, "a", stage="codegen", activations={"points": points}), named(crash, "b")]
    assert {group.name for group in groups(found, by)} == names


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("'*NaN on the reference*'", True),
        ("'*nan on the reference*'", False),
        ("numeric/nonfinite", True),
        ("pool-onnxruntime-*", True),
        ("{label: numeric/*, target: 'onnxruntime:*'}", True),
        ("{label: numeric/*, target: 'inductor:*'}", False),
        ("{leaf: $, kind: nonfinite, seed: pool, blame: target, severity: wrong}", True),
    ],
)
def test_a_known_issue_is_matched_by_text_or_by_fields(
    crash: Crash, tmp_path: Path, pattern: str, matches: bool
) -> None:
    path = tmp_path / "known.yaml"
    path.write_text(f"- pattern: {pattern}\n  url: {URL}\n  note: MaxPool drops NaN\n")
    found = load_known(path).match(crash)
    assert (found is not None) is matches
    if found is not None:
        assert rows([crash], load_known(path))[0].status == f"known: MaxPool drops NaN: {URL}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- pattern: x\n", "a url or a note"),
        ("- pattern: {colour: red}\n  note: x\n", "colour"),
        ("- pattern: {}\n  note: x\n", "nothing"),
        ("- pattern: x\n  url: javascript:alert(1)\n", "url"),
        ("- pattern: x\n  note: y\n  notes: z\n", "notes"),
        ("pattern: x\n", "list"),
        ("- [\n", "known.yaml"),
    ],
)
def test_a_known_file_that_is_wrong_is_told_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "known.yaml"
    path.write_text(text)
    with pytest.raises(XbfuzzError, match=words) as raised:
        load_known(path)
    assert "\n" not in str(raised.value)


def test_no_known_file_knows_nothing(crash: Crash, tmp_path: Path) -> None:
    assert load_known(tmp_path / "known.yaml") == KnownIssues()


def test_a_decision_is_kept_in_the_folder_and_shown_before_what_is_known(folder: Path, crash: Crash) -> None:
    (folder / "known.yaml").write_text(f"- pattern: '*'\n  url: {URL}\n")
    assert f"known: {URL}" in triage(folder).stdout
    said = triage(folder, "set", "pool", "--status", "reported", "--link", f"{URL}2")
    assert (said.exit_code, said.stdout) == (0, f"{crash.id}: reported {URL}2\n")
    loaded = load_crash(folder / crash.id)
    assert (loaded.status, loaded.link) == ("reported", f"{URL}2")
    assert f"reported {URL}2" in triage(folder).stdout
    (one,) = json.loads(triage(folder, "--json").stdout)["crashes"]
    assert (one["status"], one["link"], one["known"]) == ("reported", f"{URL}2", {"url": URL, "note": None})
    triage(folder, "set", "pool", "--status", "wontfix")
    assert load_crash(folder / crash.id).link == f"{URL}2"


def test_a_decision_changes_nothing_else_of_a_crash(folder: Path, crash: Crash) -> None:
    home = folder / crash.id
    before = {path.name: path.read_bytes() for path in home.iterdir()}
    decide(load_crash(home), "accepted")
    decide(load_crash(home), "open", "")
    assert {path.name: path.read_bytes() for path in home.iterdir()} == before


@pytest.mark.parametrize(("status", "link"), [("closed", ""), ("reported", "javascript:alert(1)")])
def test_a_decision_that_nobody_could_read_again_is_not_written(
    folder: Path, crash: Crash, status: str, link: str
) -> None:
    before = (folder / crash.id / "crash.yaml").read_bytes()
    with pytest.raises(CrashFolderError):
        decide(load_crash(folder / crash.id), status, link)
    assert (folder / crash.id / "crash.yaml").read_bytes() == before


def test_groups_are_printed_and_are_in_the_json(folder: Path, crash: Crash) -> None:
    assert "label numeric/nonfinite: 1, gravest wrong\n" in triage(folder, "--by", "label").stdout
    said = json.loads(triage(folder, "--by", "seed", "--json").stdout)
    assert said["groups"] == [{"name": "pool", "severity": "wrong", "crashes": [crash.id]}]


@given(st.lists(st.tuples(*[st.text(st.characters(exclude_categories=["Cs"]))] * len(HEADINGS)), max_size=3))
def test_csv_reads_back_and_holds_no_formulas(cells: list[tuple[str, ...]]) -> None:
    found = list(csv.reader(io.StringIO(to_csv([Row(*line) for line in cells]), newline="")))
    assert found[0] == list(HEADINGS)
    for line, given_line in zip(found[1:], cells, strict=True):
        assert [cell.removeprefix("'") for cell in line] == [cell.removeprefix("'") for cell in given_line]
        assert not any(cell.startswith(("=", "+", "@")) for cell in line)


def test_csv_is_printed(folder: Path, crash: Crash) -> None:
    lines = triage(folder, "--csv").stdout.splitlines()
    assert lines[0] == ",".join(HEADINGS)
    assert lines[1].startswith(f"{crash.id},wrong,numeric/nonfinite?,target,onnxruntime:cpu,$,nonfinite,")


def test_a_reduced_crash_still_says_how_its_input_was_made(crash: Crash) -> None:
    step = {"mutator": "mask_patterns", "params": {"pattern": "row_off"}}
    found = {"run": "1", "recipe": {"draw": 355, "dims": {"n": 7}, "steps": [step]}, "reduction": {"tests": 6}}
    lines = [line.strip() for line in show(replace(crash, recipe=None, found=found)).splitlines()]
    start = lines.index("how it was made")
    assert lines[start + 1 : start + 4] == [
        "base input 355 with n 7",
        "mask_patterns: pattern row_off",
        "then reduced by shape and values: what is stored is in inputs.safetensors",
    ]
    assert any(line.startswith("reduced from") and line.endswith(": 6 candidates tried") for line in lines)
    assert "found by run 1" in lines


def test_how_an_input_was_made_is_told_in_words(crash: Crash) -> None:
    where = {"place": "some", "key": 1956819653226563035, "count": 8, "axis": -3}
    step = {"mutator": "nonfinite", "params": {"input": "features", "where": where, "values": ["nan", "inf"]}}
    reduction = {"outcome": "reduced", "tests": 13, "seconds": 55.1, "finished": True, "nodes": [17, 1]}
    export = {"exporter": "dynamo", "dynamic": False}
    origin = {"run": "r", "execution": 15, "date": "2026-12-01", "export": export, "reduction": reduction}
    found = {**origin, "recipe": {"draw": 0, "dims": {}, "steps": [step]}}
    sizes = {"original": 792, "reduced": 4}
    assert made_of(replace(crash, recipe=None, found=found, sizes=sizes)) == [
        "base input 0",
        "nonfinite of features: where some, count 8, axis -3; values nan, inf",
        "then reduced by shape and values: what is stored is in inputs.safetensors",
        "reduced from 17 operators to 1, from 792 elements to 4: 13 candidates tried in 55.1 s, nothing is left to try",
        f"random generators seeded with {crash.rng_seed}",
        "found by run r, at execution 15, on 2026-12-01",
        "exported by torch.export, with the sizes of the input",
    ]


@pytest.mark.parametrize("odd", [{"reduction": 3}, {"export": "x"}, {"recipe": {"steps": ["?", {"params": 3}]}}])
def test_what_a_folder_says_in_another_way_is_told_as_it_is(crash: Crash, odd: dict[str, Any]) -> None:
    assert made_of(replace(crash, recipe=None, found=odd))


def test_a_crash_of_values_says_which_of_them_its_script_counts(crash: Crash, tmp_path: Path) -> None:
    difference = {**crash.difference, "kind": "value"}
    verdict = {**crash.verdict, "differences": [difference], "stats": [{"path": "$", "elements": 4, "max_abs": 3.0}]}
    signature = Signature("pool", "onnxruntime:cpu", "numeric", "$", "value")
    home = write_crash(tmp_path / "crashes", replace(crash, verdict=verdict, signature=signature))
    text = show(load_crash(home))
    absolute = float(re.search(r"^ABSOLUTE = (.*)$", (home / "repro.py").read_text(), re.MULTILINE)[1])  # type: ignore[index]
    assert f"repro.py  (counts elements more than {absolute:.3g} apart;" in text
    assert "counts elements" not in show(crash), "NaN are counted alike"


@pytest.mark.parametrize(
    ("fields", "project"),
    [
        ({}, Project.ONNXRUNTIME),
        ({"stage": "export"}, Project.PYTORCH),
        ({"blame": "reference"}, Project.PYTORCH),
        ({"blame": "unknown"}, Project.ONNXRUNTIME),
        ({"target": "inductor:cpu"}, Project.PYTORCH),
        ({"target": "inductor:cpu", "blame": "unknown"}, Project.PYTORCH),
        ({"blame": "reference", "evidence": ("drift starts at torchvision::nms",)}, Project.VISION),
    ],
)
def test_an_issue_belongs_to_the_project_whose_side_is_wrong(
    crash: Crash, fields: dict[str, Any], project: Project
) -> None:
    assert project_of(replace(crash, **fields))[0] is project


def test_a_draft_holds_the_script_the_versions_and_both_distances(folder: Path, crash: Crash) -> None:
    said = triage(folder, "draft", "pool")
    script = (folder / crash.id / "repro.py").read_text().rstrip()
    assert said.exit_code == 0
    for part in (
        "To: https://github.com/microsoft/onnxruntime/issues/new/choose\n",
        "Title: onnxruntime:cpu differs from eager:cpu: ",
        "### To reproduce",
        f"```python\n{script}\n```",
        "| eager:cpu | nan | 0.8 |",
        "| onnxruntime:cpu | 5.0 | 3.1e+04 |",
        "| the same module in float64 | nan | |",
        "### ONNX Runtime Version or Commit ID\n\n1.32.0\n",
        "X64 (Some CPU)",
        "torch 2.14.1",
    ):
        assert part in said.stdout


@pytest.mark.parametrize("project", list(Project))
def test_every_project_has_a_form_that_holds_evidence_and_script(folder: Path, crash: Crash, project: Project) -> None:
    changes: dict[Project, dict[str, Any]] = {
        Project.ONNXRUNTIME: {},
        Project.PYTORCH: {"target": "inductor:cpu?dynamic=true"},
        Project.VISION: {"blame": "reference", "evidence": ("torchvision::nms",)},
    }
    found = draft(replace(load_crash(folder / crash.id), **changes[project]))
    assert found.project is project
    assert "answer differently on the same input" in found.body
    assert "exits 1 while the difference is there" in found.body
    assert "2.14.1" in found.body


def test_a_draft_names_no_path_of_an_interpreter_and_nothing_breaks_out_of_its_markdown(
    folder: Path, crash: Crash
) -> None:
    (folder / crash.id / "repro.py").write_text('"""\n```\n<script>\n"""\n')
    loaded = load_crash(folder / crash.id)
    evil = replace(loaded, target="onnxruntime:cpu@/home/me/python", evidence=("a\n# heading <b>",))
    text = draft(evil).text
    assert "/home/me" not in text
    assert "\n# heading" not in text
    assert "\\<b\\>" in text
    assert '````python\n"""\n```' in text


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([["y", "aten.relu.default", ["%x"], {}]], "1 of 4 operators show it: aten.relu.default"),
        ([["y"]], "its operators cannot be read: not a graph"),
        (5, "its operators cannot be read: not a graph"),
    ],
)
def test_a_model_taken_apart_is_shown_by_its_operators_and_a_damaged_one_as_such(
    nodes: Any, said: str, crash: Crash
) -> None:
    graph = {"inputs": ["x"], "constants": {}, "nodes": nodes, "output": "%y"}
    model = {"source": "graph", "graph": graph}
    text = show(replace(crash, seed={**crash.seed, "model": model}, sizes={"nodes": 1, "nodes_original": 4}))
    assert said in text
