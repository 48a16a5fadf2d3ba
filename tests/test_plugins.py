"""Plug-ins: loaded once, told to workers, contained when they misbehave; those of docs/plugins.md run a campaign."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fuzzer import plugins
from fuzzer.backends.base import ANY_NAME, Backend
from fuzzer.backends.registry import availability, backend_class, known, parse, register
from fuzzer.backends.session import State, Where
from fuzzer.cli import main
from fuzzer.crashes.replay import CrashState, replay
from fuzzer.crashes.store import load_crash
from fuzzer.diagnose.interventions import registered
from fuzzer.errors import InputError, PluginError, SeedError, SpecError
from fuzzer.mutate import find_mutator, mutator_names
from fuzzer.plugins import GROUPS, PLUGINS, SHIPPED, Plugin, load_plugins, origin
from fuzzer.seeds import load_seed
from fuzzer.seeds.schema import TASK_KINDS, Task
from fuzzer.verify.tasks import evaluate, find_task, task_names
from fuzzer.verify.verdict import Blame

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/plugins.md"
FILES = ("rounded.py", "stripes.py", "shortlist.py", "exact_weights.py")

SEED = """\
name: scorer
task: shortlist
model: {source: builder, path: ., builder: 'scorer:Scorer', weights: random}
inputs:
  x: {kind: floats, shape: [4, 8], range: [-1, 1]}
mutators: [stripes]
allow: {nonfinite: false}
backends: ['rounded:cpu?dtype=bfloat16']
"""
SCORER = """\
from torch import nn


class Scorer(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))
"""
BACKEND = """\
from fuzzer.backends.base import Backend
from fuzzer.backends.registry import register

@register
class Mine(Backend):
    runtime = "mine"
    def unavailable(spec): return None
    def prepare(self, model, example): ...
    def run(self, sample): ...
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's plug-ins as files, and a seed that uses them."""
    home = tmp_path_factory.mktemp("plugins")
    for text in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        name = text.splitlines()[0].removeprefix("# ")
        (home / name).write_text(text, encoding="utf-8")
    (home / "scorer.yaml").write_text(SEED)
    (home / "scorer.py").write_text(SCORER)
    return home


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Plugin]]:
    """`load_plugins`, of one file or module; what it brought is forgotten when the test ends."""
    monkeypatch.setenv(PLUGINS, "")
    load_plugins()  # what is shipped stays
    before = dict(plugins._loaded)
    yield lambda name: load_plugins([str(name)])[-1]
    for name, plugin in list(plugins._loaded.items()):
        if name not in before:
            plugins._forget({kind: plugin.registered.get(kind, ()) for kind in plugins._REGISTERS})
            del plugins._loaded[name]


def write(folder: Path, text: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def xbfuzz(*args: str | Path, cwd: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"XBFUZZ_CACHE": str(cache), "PYTHONPATH": str(ROOT), PLUGINS: ""}
    words = [sys.executable, "-m", "fuzzer", *map(str, args)]
    return subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=280, check=False)


class TestLoading:
    def test_a_file_brings_a_backend_and_says_that_it_did(self, tmp_path: Path, load: Callable[..., Plugin]) -> None:
        path = write(tmp_path, BACKEND)
        assert load(path).registered == {"backends": ("mine",)}
        assert backend_class("mine").runtime == "mine"
        assert origin("backends", "mine") == str(path.resolve())
        assert origin("backends", "eager") is None
        assert "mine:cpu" in [str(spec) for spec in known()]

    def test_it_is_loaded_once_however_it_is_named(
        self, tmp_path: Path, load: Callable[..., Plugin], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = write(tmp_path, BACKEND + "print('x', file=open('count', 'a'))\n")
        monkeypatch.chdir(tmp_path)
        assert load("mine.py") is load(path) is load(tmp_path / "." / "mine.py")
        assert (tmp_path / "count").read_text() == "x\n"
        assert os.environ[PLUGINS] == str(path.resolve())

    def test_a_module_is_found_in_the_current_folder(
        self, tmp_path: Path, load: Callable[..., Plugin], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(tmp_path, BACKEND, "mine_as_a_module.py")
        monkeypatch.chdir(tmp_path)
        path = list(sys.path)
        assert load("mine_as_a_module").registered == {"backends": ("mine",)}
        assert sys.path == path
        assert os.environ[PLUGINS] == "mine_as_a_module"

    def test_two_files_of_one_name_are_two_plug_ins_and_import_their_own_neighbours(
        self, tmp_path: Path, load: Callable[..., Plugin]
    ) -> None:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            write(tmp_path / name, f"RUNTIME = 'mine-{name}'\n", f"neighbour_{name}.py")
            text = BACKEND.replace('"mine"', "RUNTIME")
            write(tmp_path / name, f"from neighbour_{name} import RUNTIME\n{text}")
        assert load(tmp_path / "one/mine.py").registered == {"backends": ("mine-one",)}
        assert load(tmp_path / "two/mine.py").registered == {"backends": ("mine-two",)}

    def test_what_it_prints_and_sets_stays_with_it(
        self, tmp_path: Path, load: Callable[..., Plugin], capsys: pytest.CaptureFixture[str]
    ) -> None:
        load(write(tmp_path, "import torch\nprint('loud')\ntorch.set_default_dtype(torch.float64)\n"))
        assert capsys.readouterr() == ("", "loud\n")
        assert torch.get_default_dtype() == torch.float32

    def test_an_installed_package_announces_it_and_a_broken_one_is_told_and_passed_over(
        self, tmp_path: Path, load: Callable[..., Plugin], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(tmp_path, BACKEND, "announced.py")
        write(tmp_path, "import a_package_that_is_not_there\n", "broken_one.py")
        about = tmp_path / "announcer-1.2.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: announcer\nVersion: 1.2\n")
        (about / "entry_points.txt").write_text("[xbfuzz.backends]\na = announced\nb = broken_one\n")
        monkeypatch.syspath_prepend(tmp_path)
        found = {plugin.name: plugin for plugin in load_plugins()}
        assert found["announced"].registered == {"backends": ("mine",)}
        assert found["announced"].source == "package announcer 1.2"
        assert found["broken_one"].failure == (
            "plug-in broken_one: ModuleNotFoundError: No module named 'a_package_that_is_not_there'"
        )
        assert os.environ[PLUGINS] == ""  # a worker finds it by itself

    def test_what_ships_is_what_the_project_announces(self) -> None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        announced = {group: tuple(names.values()) for group, names in project["entry-points"].items()}
        assert {group: names for group, names in announced.items() if group in GROUPS} == SHIPPED


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sys\nsys.exit(3)\n", "it called sys.exit(3) (mine.py, line 2)"),
        ("x = 1\nraise RuntimeError('no\\nway')\n", "RuntimeError: no (mine.py, line 2)"),
        ("def f(:\n", "SyntaxError"),
        ("import not_a_module_at_all\n", "No module named 'not_a_module_at_all'"),
        (BACKEND.replace('"mine"', '"eager"'), "two backends are called 'eager': Eager and Mine"),
        (BACKEND.replace('"mine"', '"oracle"'), "no backend can be called 'oracle'"),
        (BACKEND.replace('"mine"', '"Not A Name"'), "does not read as runtime:device"),
        (BACKEND.replace("def run", "def walk"), "the backend class Mine does not define run"),
        (BACKEND.replace("(Backend)", ""), "is no subclass of fuzzer.backends.base.Backend"),
        (BACKEND.replace("    runtime", "    # "), "the backend class Mine has no `runtime`"),
        (BACKEND + "raise ValueError('half way')\n", "ValueError: half way"),
        (
            "from fuzzer.mutate import find_mutator, register\nregister(type(find_mutator('scale')))\n",
            "there is already a mutator named 'scale'",
        ),
        (
            "from fuzzer.verify.tasks import find_task, register\nregister(type(find_task('tokens')))\n",
            "there is already a task named 'tokens'",
        ),
    ],
)
def test_one_that_cannot_be_loaded_is_one_line_and_leaves_nothing_behind(
    text: str, said: str, tmp_path: Path, load: Callable[..., Plugin]
) -> None:
    names = [str(spec) for spec in known()], mutator_names(), task_names(), list(TASK_KINDS)
    path = write(tmp_path, text)
    for _ in range(2):  # whoever tries again is told again
        with pytest.raises(PluginError) as told:
            load(path)
        assert str(told.value).startswith(f"plug-in {path.resolve()}: ")
        assert said in str(told.value)
        assert "\n" not in str(told.value)
    assert ([str(spec) for spec in known()], mutator_names(), task_names(), list(TASK_KINDS)) == names
    assert os.environ[PLUGINS] == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere.py", "there is no such file"),
        ("no.such.module", "No module named 'no'"),
        ("not a name", "neither a module's name nor a file"),
        ("empty_folder", "a folder without Python code of its own"),
        ("", "neither a module's name nor a file"),
    ],
)
def test_a_name_that_leads_nowhere_ends_the_command_with_one_line(
    name: str,
    said: str,
    load: Callable[..., Plugin],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "empty_folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["backends", "--plugin", name])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("xbfuzz: plug-in")
    assert said in line


class TestOptions:
    @given(st.from_regex(r"[\w.-]+", fullmatch=True))
    def test_an_option_may_take_any_name(self, name: str) -> None:
        spec = parse("eager:cpu")
        Faulty.check(type(spec)(Faulty.runtime, "cpu", {"fault": name}))

    @pytest.mark.parametrize("value", ["", "a b", "a/b", "a;b", "*"])
    def test_but_nothing_else(self, value: str) -> None:
        with pytest.raises(SpecError, match="fault takes a name"):
            Faulty.check(type(parse("eager:cpu"))(Faulty.runtime, "cpu", {"fault": value}))


class Faulty(Backend):
    """Never registered: its options alone are looked at."""

    runtime = "faulty"
    options: Mapping[str, tuple[str, ...]] = {"fault": ANY_NAME}  # type: ignore[misc]


class TestTasks:
    def test_the_kinds_that_a_seed_may_name_are_those_there_are(self) -> None:
        assert sorted(TASK_KINDS) == sorted([*task_names(), "tensors"])

    def test_a_seed_with_a_task_of_its_own_loads_once_the_plug_in_is_there(
        self, folder: Path, load: Callable[..., Plugin]
    ) -> None:
        with pytest.raises(SeedError, match=r"scorer\.yaml:2: task\.kind: expected one of classification, "):
            load_seed(folder / "scorer.yaml")
        assert load(folder / "shortlist.py").registered == {"tasks": ("shortlist",)}
        assert load_seed(folder / "scorer.yaml").task.kind == "shortlist"

    def test_a_misspelt_one_is_refused_with_the_nearest(
        self, folder: Path, tmp_path: Path, load: Callable[..., Plugin]
    ) -> None:
        load(folder / "shortlist.py")
        path = write(tmp_path, SEED.replace("task: shortlist", "task: shortlits"), "s.yaml")
        with pytest.raises(SeedError, match="got 'shortlits'; did you mean 'shortlist'"):
            load_seed(path)

    def test_the_task_of_the_page_judges_as_it_says(self, folder: Path, load: Callable[..., Plugin]) -> None:
        load(folder / "shortlist.py")
        first = torch.tensor([[5.0, 4.0, 3.0, 2.0], [1.0, 2.0, 3.0, 4.0]])
        reordered = torch.tensor([[3.0, 4.0, 5.0, 2.0], [1.0, 4.0, 3.0, 2.0]])
        other = torch.tensor([[2.0, 4.0, 3.0, 5.0], [1.0, 2.0, 3.0, 4.0]])
        task = Task(kind="shortlist")

        def judged(target: torch.Tensor, draws: list[torch.Tensor]) -> Any:
            wrapped = [{"$": draw} for draw in draws]
            return evaluate(task, {"$": first}, {"$": target}, truth={"$": first}, decide_draws=lambda: wrapped)

        assert (judged(reordered, []).status, judged(reordered, []).elements) == ("pass", 2)
        wrong = judged(other, [first])
        assert (wrong.status, wrong.metrics["changed"], wrong.blame, wrong.near_tie) == ("fail", 1, Blame.TARGET, False)
        noise = judged(other, [first, other])
        assert (noise.near_tie, noise.blame) == (True, Blame.NEITHER)
        assert evaluate(task, {"$": first[:, :2]}, {"$": first[:, :2]}).status == "not-run"

    def test_one_that_fails_itself_is_never_a_pass(self, tmp_path: Path, load: Callable[..., Plugin]) -> None:
        text = "from fuzzer.verify.tasks import TaskKind, register\n"
        text += "@register\nclass Broken(TaskKind):\n    name = 'broken'\n"
        text += "    def read(self, outputs, leaves):\n        return 1 / 0\n    def compare(self, *sides): ...\n"
        load(write(tmp_path, text))
        found = evaluate(Task(kind="broken"), {"$": torch.ones(2)}, {"$": torch.ones(2)})
        assert (found.status, found.sentence) == (
            "not-run",
            "the task 'broken' itself failed: ZeroDivisionError: division by zero",
        )

    def test_one_that_is_not_there_is_an_error_and_no_verdict(self) -> None:
        with pytest.raises(InputError, match="no task is named 'detectoin'; did you mean 'detection'"):
            evaluate(Task(kind="detectoin"), {"$": torch.ones(2)}, {"$": torch.ones(2)})


def test_the_mutator_of_the_page_clears_every_second_column(folder: Path, load: Callable[..., Plugin]) -> None:
    load(folder / "shortlist.py")
    assert load(folder / "stripes.py").registered == {"mutators": ("stripes",)}
    seed = load_seed(folder / "scorer.yaml")
    changed = find_mutator("stripes").apply(seed, {"x": torch.ones(4, 8)}, {"input": "x"})
    assert changed["x"].tolist() == [[0.0, 1.0] * 4] * 4


def test_the_intervention_of_the_page_is_one_of_those_that_a_diagnosis_tries(
    folder: Path, load: Callable[..., Plugin]
) -> None:
    assert load(folder / "exact_weights.py").registered == {"interventions": ("exact-weights",)}
    assert registered()["exact-weights"].proves("numeric/wrong-value") == "numeric/reduced-precision"


@pytest.fixture(scope="module")
def campaign(folder: Path, cache: Path) -> dict[str, Any]:
    """What a campaign of twenty executions with all plug-ins of the page printed."""
    named = [word for name in FILES for word in ("--plugin", name)]
    done = xbfuzz("run", "scorer.yaml", *named, "--max-execs", "20", "--json", cwd=folder, cache=cache)
    assert done.returncode == 1, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def crash_folder(campaign: dict[str, Any], folder: Path) -> Path:
    return folder / "crashes" / campaign["findings"][0]["id"]


class TestTheCampaignOfThePage:
    def test_runs_the_backend_in_a_worker_and_tells_its_evidence(self, campaign: dict[str, Any]) -> None:
        (target,) = campaign["targets"]
        assert campaign["executions"] == 20
        assert (target["backend"], target["status"]) == ("rounded:cpu?dtype=bfloat16", "ok")
        assert target["evidence"]["weights"] == "torch.bfloat16"

    def test_finds_that_rounded_weights_answer_otherwise(self, campaign: dict[str, Any], crash_folder: Path) -> None:
        stored = yaml.safe_load((crash_folder / "crash.yaml").read_text())
        assert stored["target"] == "rounded:cpu?dtype=bfloat16"
        assert stored["blame"] == "target"

    def test_makes_inputs_with_the_mutator(self, campaign: dict[str, Any], folder: Path) -> None:
        (journal,) = folder.glob("runs/*/events.jsonl")
        assert '"stripes"' in journal.read_text()

    def test_names_no_plug_in_in_a_crash(self, crash_folder: Path) -> None:
        text = (crash_folder / "crash.yaml").read_text()
        assert not [name for name in FILES if name in text]

    def test_replays_with_the_plug_ins(self, crash_folder: Path, folder: Path, cache: Path) -> None:
        named = [word for name in FILES[:3] for word in ("--plugin", name)]
        done = xbfuzz("replay", crash_folder, *named, "--attempts", "1", cwd=folder, cache=cache)
        assert (done.returncode, "reproduces" in done.stdout) == (0, True), done.stdout + done.stderr

    def test_is_unavailable_without_the_backend(self, crash_folder: Path, where: Where) -> None:
        found = replay(load_crash(crash_folder), where)
        assert (found.state, found.attempts) == (CrashState.UNAVAILABLE, 0)
        assert found.detail.startswith("rounded:cpu?dtype=bfloat16: no backend is called 'rounded'")

    def test_is_unavailable_without_the_task(
        self, crash_folder: Path, folder: Path, where: Where, load: Callable[..., Plugin]
    ) -> None:
        load(folder / "rounded.py")
        found = replay(load_crash(crash_folder), where)
        assert (found.state, found.attempts) == (CrashState.UNAVAILABLE, 0)
        assert found.detail.startswith("no task is named 'shortlist'")

    def test_is_run_by_pytest_with_the_plug_ins(self, crash_folder: Path, folder: Path, cache: Path) -> None:
        environment = os.environ | {"XBFUZZ_CACHE": str(cache), "PYTHONPATH": str(ROOT), PLUGINS: ""}
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # an installed xbfuzz announces the same plug-in
        words = [sys.executable, "-m", "pytest", "-p", "fuzzer.pytest_plugin", "-q", str(crash_folder)]
        words += [f"--xbfuzz-plugin={name}" for name in FILES[:3]]
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
        assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_another_interpreter_has_the_plug_in_s_backend_too(folder: Path, load: Callable[..., Plugin]) -> None:
    load(folder / "rounded.py")
    assert availability(parse(f"rounded:cpu@{sys.executable}")) is None


def test_a_worker_that_lacks_the_plug_in_refuses_with_the_reason(
    folder: Path, where: Where, load: Callable[..., Plugin], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fuzzer.backends.session import Session
    from fuzzer.inputs import base_sample

    for name in ("rounded.py", "shortlist.py"):
        load(folder / name)
    seed = load_seed(folder / "scorer.yaml")
    monkeypatch.setenv(PLUGINS, str(folder / "gone.py"))
    session = Session(seed, seed.backends[0], base_sample(seed, 0), where)
    assert session.prepare() is State.REFUSED
    assert session.reason.startswith("plug-in: no backend is called 'rounded'")
    assert f"plug-in {folder / 'gone.py'}: " in session.reason


def test_a_class_may_be_registered_twice_but_no_other_under_its_name(load: Callable[..., Plugin]) -> None:
    found = backend_class("eager")
    assert register(found) is found
    assert find_task("tokens").name == "tokens"
