"""Reading seeds: what is accepted, what is refused, and in which words."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzzer.errors import SeedError
from fuzzer.seeds import Seed, load_seed, load_seeds, seed_from_json, seed_from_text, seed_text, seed_to_json
from fuzzer.seeds.yaml_file import YamlError, dump_yaml, key_path, read_yaml

LINEAR = """\
model: {source: builder, builder: "torch.nn:Linear", args: {in_features: 4, out_features: 2}}
inputs:
  x: {kind: floats, shape: [batch, 4]}
dims:
  batch: {size: 2}
"""


def parse(text: str) -> Seed:
    return seed_from_text(text, Path("."), name="s")


def problems(text: str) -> list[str]:
    with pytest.raises(SeedError) as caught:
        parse(text)
    return caught.value.problems


class TestYaml:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("1e-5", 1e-5),
            ("1E5", 1e5),
            ("-.5", -0.5),
            ("+.inf", float("inf")),
            ("-.INF", -float("inf")),
            ("012", 12),
            ("0x1F", 31),
            ("0o17", 15),
            ("-0", 0),
            ("true", True),
            ("~", None),
            ("", None),
        ],
    )
    def test_scalars_are_those_of_yaml_1_2(self, text: str, value: object) -> None:
        got = read_yaml(f"k: {text}").data["k"]
        assert got == value
        assert type(got) is type(value)

    def test_nan_is_a_number(self) -> None:
        got = read_yaml("k: .nan").data["k"]
        assert got != got

    @pytest.mark.parametrize(
        "text", ["no", "yes", "on", "Off", "y", "2020-01-01", "1:30", "1_000", "0b1", "=", "1e", "."]
    )
    def test_what_yaml_1_1_took_for_something_else_stays_text(self, text: str) -> None:
        assert read_yaml(f"k: {text}").data == {"k": text}

    def test_a_key_given_twice_is_refused_with_both_lines(self) -> None:
        with pytest.raises(YamlError) as caught:
            read_yaml("a:\n  b: 1\n  c: 2\n  b: 3\n")
        assert str(caught.value) == "line 4: a.b: given twice, first in line 2"

    @pytest.mark.parametrize(
        "text",
        [
            "!!python/object/apply:os.system ['true']",
            "!!python/name:os.system",
            "!!binary aGk=",
            "!!set {a}",
            "!mine 3",
        ],
    )
    def test_tags_are_refused(self, text: str) -> None:
        with pytest.raises(YamlError, match="not allowed"):
            read_yaml(f"k: {text}")

    def test_an_anchor_may_be_used_again_and_merged(self) -> None:
        data = read_yaml("a: &a {x: 1, y: 2}\nb: *a\nc: {<<: *a, y: 3}\n").data
        assert data == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 2}, "c": {"y": 3, "x": 1}}

    def test_an_alias_bomb_is_refused(self) -> None:
        rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
        rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
        with pytest.raises(YamlError, match="more than 100000 values"):
            read_yaml("\n".join(rows))

    def test_an_anchor_that_contains_itself_is_refused(self) -> None:
        with pytest.raises(YamlError, match="contains itself"):
            read_yaml("a: &a [1, *a]")

    def test_deep_nesting_is_refused(self) -> None:
        with pytest.raises(YamlError, match="64 deep"):
            read_yaml("[" * 5000 + "]" * 5000)

    @pytest.mark.parametrize("text", ["a: [1", "a: 1\n b: 2", "a: \x07", "a: 1\n---\nb: 2", "%", "a: *b", "{1: 2}"])
    def test_what_is_no_yaml_gives_a_yaml_error(self, text: str) -> None:
        with pytest.raises(YamlError):
            read_yaml(text)

    def test_the_line_of_a_key_is_found(self) -> None:
        document = read_yaml("a: 1\nb:\n  - x\n  - c:\n      d: 1\n")
        assert document.line(("b", 1, "c", "d")) == 5
        assert document.line(("b", 1, "nothing", "here")) == 4
        assert key_path(("b", 1, "c")) == "b[1].c"

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
            max_leaves=10,
        )
    )
    @settings(deadline=None)
    def test_plain_data_comes_back_from_what_was_dumped(self, data: Any) -> None:
        assert read_yaml(dump_yaml(data)).data == data

    @given(st.text(alphabet="0123456789.eE+-_:xoyntfrueals~<= ", max_size=8))
    @settings(deadline=None)
    def test_dumped_text_is_text_to_yaml_1_1_readers_too(self, text: str) -> None:
        assert yaml.safe_load(dump_yaml({"k": text})) == {"k": text}
        assert read_yaml(dump_yaml({"k": text})).data == {"k": text}


class TestShorthand:
    @pytest.mark.parametrize(
        ("short", "long"),
        [
            ("task: classification", "task: {kind: classification}"),
            ("mutators: [ties, boxes]", "mutators: {only: [ties, boxes]}"),
        ],
    )
    def test_a_short_form_means_the_long_one(self, short: str, long: str) -> None:
        assert parse(LINEAR + short) == parse(LINEAR + long)

    @pytest.mark.parametrize(
        ("short", "long"),
        [("calibrated", "{kind: calibrated}"), ("path/w.safetensors", "{kind: file, file: path/w.safetensors}")],
    )
    def test_weights_are_a_kind_or_a_file(self, short: str, long: str) -> None:
        text = "model: {{source: library, name: resnet18, weights: {}}}\ninputs: {{x: {{kind: floats, shape: [8]}}}}"
        assert parse(text.format(short)) == parse(text.format(long))


class TestProblems:
    def test_every_problem_is_listed_at_once_with_line_and_key(self, tmp_path: Path) -> None:
        text = """\
model:
  source: library
  name: resnet81
inputs:
  image: {kind: imgae, shpae: [1, n, 3.5], files: [gone.png]}
  b: {kind: floats, shape: [m], range: [2, 1]}
dims:
  n: {size: "3"}
call: [image, c]
task: classificatoin
memory_mb: 0
deadline_s: true
memory_mb: 3
taks: 3
tolerance: {atol: 1e-5, rtol: -1}
accept: [{kind: x}]
signed_zero: no
backends: inductor:cpu
"""
        path = tmp_path / "x.yaml"
        path.write_text(text)
        with pytest.raises(SeedError) as caught:
            load_seed(path)
        found = [problem.removeprefix(f"{path}:") for problem in caught.value.problems]
        starts = [
            "3: model.name: torchvision has no model 'resnet81'; did you mean 'resnet",
            "5: inputs.image.shpae: unknown key; did you mean 'shape'?",
            "5: inputs.image.kind: expected one of image, boxes, ",
            "5: inputs.image.shape[2]: expected a whole number or the name of a dimension, got 3.5",
            f"5: inputs.image.files[0]: no such file: {tmp_path / 'gone.png'}",
            "6: inputs.b: `range` needs its lower end first",
            "6: inputs.b.shape[0]: dimension 'm' is not under `dims`",
            "8: dims.n.size: expected a whole number, got '3'",
            "9: call: 'c' is no input",
            "9: call: input 'b' is never used",
            "10: task.kind: expected one of ",
            "11: memory_mb: expected more than 0, got 0",
            "12: deadline_s: expected a number, got true",
            "13: memory_mb: given twice, first in line 11",
            "14: taks: unknown key; did you mean 'task'?",
            "15: tolerance.rtol: expected at least 0, got -1",
            "16: accept[0].why: is needed but missing",
            "17: signed_zero: expected true or false, got 'no'",
            "18: backends: expected a list, got 'inductor:cpu'",
        ]
        for start in starts:
            assert any(each.startswith(start) for each in found), start
        assert len(found) == len(starts)

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            ("deadline_s: abc", "seed:6: deadline_s: expected a number, got 'abc'"),
            ("memory_mb: 1.0", "seed:6: memory_mb: expected a whole number, got 1.0"),
            ("deadline_s: .inf", "seed:6: deadline_s: expected a finite number, got .inf"),
            ("name: a/b", "seed:6: name: expected a name of letters, digits, `_`, `.` and `-`, got 'a/b'"),
            (
                "independent: n",
                "seed:6: independent: 'n' has to be the first dimension of every input, and no other one",
            ),
            ("mutators: 3", "seed:6: mutators: expected a mapping of keys to values, got 3"),
            (
                "task: {kind: tensors, outputs: {a: logits}}",
                "seed:6: task.outputs.a: expected the path of an output, such as [0].boxes, .logits or $, got 'logits'",
            ),
        ],
    )
    def test_a_wrong_value_is_told_in_plain_words(self, change: str, problem: str) -> None:
        assert problems(LINEAR + change) == [problem]

    @pytest.mark.parametrize(
        ("spec", "said"),
        [
            ("{kind: tokens, shape: [4], dtype: bool}", "has no dtype bool"),
            ("{kind: boxes, shape: [4, 5]}", "boxes end in a dimension of 4"),
            ("{kind: floats, shape: [4], mean: [0.5]}", "go with images"),
            ("{kind: image, shape: [1, 3, 8, 8], std: [1, 0, 1]}", "needs positive numbers"),
            ("{kind: image, shape: [1, 3, 8, 8], mean: [1, 0]}", "needs 1 or 3 numbers, got 2"),
            ("{kind: floats, shape: [4], key: a}", "`key` goes with `files`"),
        ],
    )
    def test_fields_that_do_not_go_with_the_kind_are_refused(self, spec: str, said: str) -> None:
        model = LINEAR.splitlines()[0]
        assert said in problems(f"{model}\ninputs: {{x: {spec}}}")[0]

    def test_an_int_is_a_float_but_text_is_no_number(self) -> None:
        assert parse(LINEAR + "deadline_s: 3").deadline_s == 3.0
        assert problems(LINEAR + 'deadline_s: "3"') == ["seed:6: deadline_s: expected a number, got '3'"]

    @pytest.mark.parametrize("text", ["", "3", "- a", "just text"])
    def test_a_file_that_is_no_mapping_is_told_so(self, text: str) -> None:
        assert "expected a mapping" in problems(text)[0]

    @pytest.mark.parametrize(
        ("model", "said"),
        [
            ("{source: onnx, path: gone.onnx}", "model.path: no such file"),
            ("{source: builder, builder: 'nosuchmodule_x:f'}", "model.builder: no module 'nosuchmodule_x'"),
            ("{source: builder, builder: 'm:f', path: gone}", "model.path: no such folder"),
            ("{source: builder, builder: 'torch.nn:Linear', weights: calibarted}", "did you mean 'calibrated'?"),
            (
                "{source: library, name: detection.ssdlite320_mobilenet_v3_larg}",
                "'detection.ssdlite320_mobilenet_v3_large'?",
            ),
        ],
    )
    def test_what_a_seed_names_must_be_there(self, tmp_path: Path, model: str, said: str) -> None:
        path = tmp_path / "x.yaml"
        path.write_text(f"model: {model}\ninputs: {{x: {{kind: floats, shape: [2]}}}}\n")
        with pytest.raises(SeedError) as caught:
            load_seed(path)
        assert len(caught.value.problems) == 1
        assert said in caught.value.problems[0]

    def test_a_module_beside_the_seed_is_found(self, tmp_path: Path) -> None:
        (tmp_path / "builders").mkdir()
        (tmp_path / "builders" / "mine.py").write_text("raise SystemExit\n")  # looked for, never imported
        path = tmp_path / "x.yaml"
        path.write_text(LINEAR.replace('builder: "torch.nn:Linear"', "builder: 'mine:f', path: builders"))
        assert load_seed(path).path("builders") == tmp_path.resolve() / "builders"

    @pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a: [", b"a: 1\n\tb: 2"])
    def test_an_unreadable_file_is_one_clear_problem(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "x.yaml"
        path.write_bytes(content)
        with pytest.raises(SeedError) as caught:
            load_seed(path)
        assert len(caught.value.problems) == 1
        assert caught.value.problems[0].startswith(f"{path}:")
        assert "\n" not in caught.value.problems[0]


class TestFiles:
    def test_the_name_is_the_stem_and_paths_start_at_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "linear.yaml").write_text(LINEAR)
        seed = load_seed(tmp_path / "linear.yaml")
        assert seed.name == "linear"
        assert seed.base == tmp_path.resolve()

    def test_a_folder_means_its_seeds_and_the_order_given_is_kept(self, tmp_path: Path) -> None:
        for name in ("z.yaml", "d/b.yaml", "d/a.yaml", "d/e/c.yaml"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(LINEAR)
        (tmp_path / "d" / "notes.txt").write_text("not a seed")
        seeds = load_seeds([tmp_path / "z.yaml", tmp_path / "d", tmp_path / "d" / "a.yaml"])
        assert [seed.name for seed in seeds] == ["z", "a", "b", "c"]

    def test_problems_of_all_files_come_together(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text(LINEAR + "x: 1\n")
        (tmp_path / "b.yaml").write_text(LINEAR + "y: 1\n")
        (tmp_path / "empty").mkdir()
        with pytest.raises(SeedError) as caught:
            load_seeds([tmp_path, tmp_path / "gone.yaml", tmp_path / "empty"])
        said = "\n".join(caught.value.problems)
        assert all(
            part in said for part in ("a.yaml:6: x:", "b.yaml:6: y:", "gone.yaml: cannot be read", "empty: no *.yaml")
        )

    def test_two_seeds_of_one_name_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text(LINEAR)
        (tmp_path / "b.yaml").write_text(LINEAR + "name: a\n")
        with pytest.raises(SeedError, match=r"b\.yaml: name: 'a' is also the name of .*a\.yaml"):
            load_seeds([tmp_path])

    def test_torchvision_is_imported_for_library_seeds_only(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text(LINEAR)
        code = "import sys, pathlib; from fuzzer.seeds import load_seed; load_seed(pathlib.Path(sys.argv[1]))"
        code += "; print('torchvision' in sys.modules, 'fuzzer.backends' in sys.modules)"
        run = [sys.executable, "-c", code, str(tmp_path / "a.yaml")]
        done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
        assert done.stdout.split() == ["False", "False"]


names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
numbers = st.floats(allow_nan=False, allow_infinity=False)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
ranges = st.tuples(numbers, numbers).filter(lambda pair: pair[0] != pair[1]).map(sorted)


@st.composite
def seed_data(draw: st.DrawFn) -> dict[str, Any]:
    dims = draw(st.dictionaries(names, st.integers(0, 5), max_size=3))
    sizes = st.integers(0, 9) | st.sampled_from(sorted(dims)) if dims else st.integers(0, 9)
    spec = st.fixed_dictionaries(
        {"kind": st.sampled_from(["floats", "scores"]), "shape": st.lists(sizes, max_size=3)},
        optional={
            "range": ranges,
            "exact": st.booleans(),
            "dtype": st.sampled_from(["float16", "bfloat16", "float64"]),
        },
    )
    inputs = draw(st.dictionaries(names, spec, min_size=1, max_size=3))
    text = st.text(max_size=12)
    data = {
        "name": draw(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,10}", fullmatch=True)),
        "model": {"source": "builder", "builder": "m:f", "args": draw(st.dictionaries(text, plain, max_size=3))},
        "inputs": inputs,
        "dims": {name: {"size": size, "min": draw(st.integers(0, size))} for name, size in dims.items()},
    }
    optional = {
        "about": text,
        "call": st.sampled_from([[*inputs], [[*inputs]], {"args": [], "kwargs": {name: name for name in inputs}}]),
        "tolerance": st.fixed_dictionaries({"atol": st.floats(0, 1), "rtol": st.floats(0, 1)}),
        "accept": st.lists(st.fixed_dictionaries({"why": st.text(min_size=1), "label": text}), max_size=2),
        "backends": st.lists(text, max_size=2),
        "task": st.fixed_dictionaries({"kind": st.just("detection"), "outputs": st.just({"boxes": "[0].boxes"})}),
        "mutators": st.lists(text, max_size=2),
        "deadline_s": st.floats(1e-3, 1e6) | st.integers(1, 100),
    }
    return data | draw(st.fixed_dictionaries({}, optional=optional))


class TestRoundTrip:
    @given(seed_data())
    @settings(deadline=None, max_examples=60)
    def test_any_seed_comes_back_from_its_text_and_its_json(self, data: dict[str, Any]) -> None:
        seed = Seed.model_validate(data).at(Path("/somewhere"))
        text = seed_text(seed)
        assert seed_from_text(text, Path("/somewhere")) == seed
        assert seed_text(seed_from_text(text, Path("/somewhere"))) == text
        sent = json.dumps(seed_to_json(seed), allow_nan=False)
        assert seed_from_json(sent, Path("/somewhere")) == seed
        assert seed_from_json(json.loads(sent), Path("/elsewhere")).at(Path("/somewhere")) == seed

    def test_tuples_given_in_python_come_back_as_lists(self) -> None:
        seed = Seed.model_validate(seed_to_json(parse(LINEAR)) | {"call": (("x",),)})
        assert seed.call == [["x"]]
        assert seed_from_text(seed_text(seed), seed.base) == seed

    def test_json_that_is_none_is_a_seed_error(self) -> None:
        with pytest.raises(SeedError, match="not JSON"):
            seed_from_json("{", Path("."))
        with pytest.raises(SeedError, match=r"seed: model: is needed but missing"):
            seed_from_json("{}", Path("."))


def test_an_onnx_file_is_compared_in_onnx_runtime_with_its_conversion() -> None:
    seed = Seed.model_validate(
        {
            "name": "file",
            "model": {"source": "onnx", "path": "model.onnx"},
            "inputs": {"x": {"kind": "floats", "shape": [2]}},
        }
    )
    assert (seed.reference, seed.backends) == ("eager:cpu", ["onnxruntime:cpu"])
