"""Crash folders: names that stay, what is written comes back, nothing half-written, nothing believed unchecked."""

from __future__ import annotations

import errno
import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from crash_samples import POOL, builder_seed, nan_image, nan_verdict, pool_crash
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuzzer.crashes import store
from fuzzer.crashes.crash import Crash, bounded, seed_of
from fuzzer.crashes.environment import environment
from fuzzer.crashes.literals import literal
from fuzzer.crashes.signature import CLASS_OF_KIND, Signature, signature_of
from fuzzer.crashes.store import kept_weights, list_crashes, load_crash, write_crash
from fuzzer.crashes.trust import needs_trust
from fuzzer.diagnose import Label
from fuzzer.errors import CrashFolderError, XbfuzzError
from fuzzer.seeds import Seed
from fuzzer.tensors import encode, raw_bytes
from fuzzer.verify.verdict import Difference, Kind, Outcome, Verdict

torch.set_num_threads(1)


@pytest.fixture
def seed(tmp_path: Path) -> Seed:
    return builder_seed(tmp_path / "seeds")


@pytest.fixture
def crash(seed: Seed) -> Crash:
    return pool_crash(seed, environment=environment(), found={"run": "r1", "execution": 3, "date": "2026-01-01"})


@pytest.fixture
def stored(crash: Crash, tmp_path: Path) -> Path:
    return write_crash(tmp_path / "crashes", crash)


def verdict(*differences: Difference) -> Verdict:
    return Verdict(Outcome.MISMATCH, 1, 1, list(differences))


# Names


def test_an_id_never_changes() -> None:
    # Written down once: a change here would give every stored crash a new name.
    golden = {
        Signature("pool", "onnxruntime:cpu", "numeric", "$", "nonfinite"): "pool-onnxruntime-cpu-42593075",
        Signature("pool", "aot_eager:cpu", "numeric", "$", "nonfinite"): "pool-aot_eager-cpu-3d2e9c0b",
    }
    assert {signature: signature.id for signature in golden} == golden


def test_the_hash_is_that_of_the_five_fields_as_a_json_list() -> None:
    text = '["s", "eager:cuda", "order", "[0].boxes", "value"]'
    expected = hashlib.sha256(text.encode()).hexdigest()[:8]
    assert Signature("s", "eager:cuda", "order", "[0].boxes", "value").hash == expected


@given(st.text(max_size=300), st.text(max_size=20), st.text(max_size=20))
def test_an_id_is_one_safe_file_name(seed_name: str, target: str, leaf: str) -> None:
    name = Signature(seed_name, target, "numeric", leaf, "value").id
    assert Path(name).name == name
    assert ".." not in name
    assert len(name) < 200
    assert not name.startswith((".", "-"))


def test_options_values_and_elements_do_not_enter_the_signature() -> None:
    one = verdict(Difference("$", Kind.VALUE, "0.1 against 0.2", 9, 1, (3,), "0.1", "0.2"))
    two = verdict(Difference("$", Kind.VALUE, "7 against 8", 99, 50, (44,), "7", "8"))
    label, other = Label("numeric", "wrong-value"), Label("numeric", "approximation")
    first = signature_of("s", "inductor:cpu", one, label)
    assert first == signature_of("s", "inductor:cpu?dynamic=true", two, other)
    assert first == Signature("s", "inductor:cpu", "numeric", "$", "value")


def test_a_tie_does_not_hide_a_wrong_value_at_the_same_leaf() -> None:
    found = verdict(Difference(".indices", Kind.INTEGER, ""))
    tie = signature_of("s", "onnxruntime:cpu", found, Label("order", "tie"))
    wrong = signature_of("s", "onnxruntime:cpu", found, Label("numeric", "wrong-value"))
    assert tie.id != wrong.id


def test_a_label_that_rests_on_perturbed_runs_does_not_enter_the_signature() -> None:
    found = verdict(Difference(".indices", Kind.INTEGER, ""))
    near = signature_of("s", "onnxruntime:cpu", found, Label("order", "near-tie"))
    assert near == signature_of("s", "onnxruntime:cpu", found, Label("numeric", "wrong-value"))


def test_every_kind_has_a_class() -> None:
    assert set(CLASS_OF_KIND) == set(Kind)


# Round trip


def test_a_crash_reads_back_as_it_was_written(crash: Crash, stored: Path, seed: Seed) -> None:
    back = load_crash(stored)
    assert stored.name == crash.id == back.id
    for name in ("signature", "label", "evidence", "blame", "severity", "reference", "target", "recipe", "rng_seed"):
        assert getattr(back, name) == getattr(crash, name), name
    for name in ("environment", "found", "tiers", "sizes", "expect"):
        assert getattr(back, name) == getattr(crash, name), name
    assert raw_bytes(back.inputs["x"]) == raw_bytes(nan_image())
    assert back.original is not None
    assert raw_bytes(back.original["x"]) == raw_bytes(nan_image())
    assert back.difference["index"] == [0, 0, 0, 0]
    assert seed_of(back) == seed
    assert seed_of(back).base == seed.base.resolve()


def test_a_private_crash_keeps_no_original(crash: Crash, tmp_path: Path) -> None:
    home = write_crash(tmp_path / "private", crash, private=True)
    assert not (home / "original.safetensors").exists()
    assert load_crash(home).original is None


def test_weights_are_kept_up_to_the_limit_and_hashed_beyond_it(crash: Crash, tmp_path: Path) -> None:
    weights = {"w": torch.arange(10.0)}
    kept = load_crash(write_crash(tmp_path / "a", crash, weights=weights, keep_weights=40))
    large = load_crash(write_crash(tmp_path / "b", crash, weights=weights, keep_weights=39))
    found = kept_weights(kept)
    assert found is not None
    assert torch.equal(found["w"], weights["w"])
    assert kept_weights(large) is None
    assert kept.weights["hash"] == large.weights["hash"]
    assert "pool:Pool" in large.weights["rebuild"]
    assert seed_of(kept).model.weights.file == str((tmp_path / "a" / crash.id / "weights.safetensors").resolve())
    assert seed_of(large).model.weights.kind == "default"


def test_a_crash_written_again_keeps_its_weights(crash: Crash, tmp_path: Path) -> None:
    home = write_crash(tmp_path / "c", crash, weights={"w": torch.ones(3)})
    again = write_crash(tmp_path / "c", replace(load_crash(home), expect="agrees"))
    assert again == home
    assert load_crash(home).expect == "agrees"
    assert kept_weights(load_crash(home)) is not None
    assert [path.name for path in (tmp_path / "c").iterdir() if path.name != ".lock"] == [crash.id]


def test_values_that_json_does_not_have_survive_as_text(seed: Seed, tmp_path: Path) -> None:
    found = nan_verdict()
    found.differences[0].drift_target = float("inf")
    found.stats[0].max_abs = float("nan")
    crash = replace(pool_crash(seed), verdict=bounded(found))
    back = load_crash(write_crash(tmp_path / "c", crash))
    assert back.difference["drift_target"] == "inf"
    assert back.verdict["stats"][0]["max_abs"] == "nan"


def test_crashes_are_listed_by_name_without_leftovers(stored: Path, seed: Seed, tmp_path: Path) -> None:
    other = write_crash(stored.parent, pool_crash(seed, "aot_eager:cpu"))
    (stored.parent / ".new-left").mkdir()
    (stored.parent / "notes.txt").write_text("mine")
    assert list_crashes(stored.parent) == [other, stored]
    assert list_crashes(tmp_path / "nowhere") == []


# Whole or not there


def _full(*args: Any, **kwargs: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_nothing_half_written(
    crash: Crash, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(store.os, call, _full)
    with pytest.raises(XbfuzzError, match="No space left") as caught:
        write_crash(tmp_path / "c", crash)
    assert "\n" not in str(caught.value)
    assert [path.name for path in (tmp_path / "c").iterdir() if path.name != ".lock"] == []


def test_a_full_disk_leaves_the_crash_that_was_there(
    crash: Crash, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace

    def only_the_first(source: Any, target: Any) -> None:
        if Path(source).name.startswith(".new-"):
            _full()
        real(source, target)

    monkeypatch.setattr(store.os, "replace", only_the_first)
    with pytest.raises(XbfuzzError, match="No space left"):
        write_crash(stored.parent, replace(crash, expect="agrees"))
    assert load_crash(stored).expect == "diverges"


def test_a_writer_that_was_killed_between_two_renames_loses_nothing(stored: Path) -> None:
    stored.rename(stored.with_name(f".old-{stored.name}"))
    assert list_crashes(stored.parent) == [stored]
    load_crash(stored)


# Hostile and damaged folders


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "crash.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))


def refuse(folder: Path, match: str) -> None:
    with pytest.raises(CrashFolderError, match=match) as caught:
        load_crash(folder)
    assert "\n" not in str(caught.value)


def test_missing_folders_and_files_are_named(stored: Path, tmp_path: Path) -> None:
    refuse(tmp_path / "nowhere", "no such crash folder")
    (stored / "inputs.safetensors").unlink()
    refuse(stored, r"inputs\.safetensors: missing")
    (stored / "crash.yaml").unlink()
    refuse(stored, r"crash\.yaml: missing")


def test_a_changed_file_is_noticed(stored: Path) -> None:
    data = bytearray((stored / "inputs.safetensors").read_bytes())
    data[-1] ^= 1
    (stored / "inputs.safetensors").write_bytes(data)
    refuse(stored, "SHA-256 differs")


def test_yaml_that_would_run_code_is_refused_and_runs_nothing(stored: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    text = (stored / "crash.yaml").read_text()
    (stored / "crash.yaml").write_text(text + f'more: !!python/object/apply:os.system ["touch {mark}"]\n')
    refuse(stored, "tag")
    assert not mark.exists()


def test_a_yaml_bomb_is_refused_in_bounded_time(stored: Path) -> None:
    levels = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))
    (stored / "crash.yaml").write_text(f"a0: &a0 [x, x]\n{levels}\n")
    refuse(stored, "more than")


@pytest.mark.parametrize(
    "text", ["", "- a list\n", "id: 3\n", "{", "format: 1\nformat: 1\n", "a: &a [*a]\n", "\x00", "[" * 5000]
)
def test_text_that_is_no_crash_is_refused(stored: Path, text: str) -> None:
    (stored / "crash.yaml").write_text(text)
    refuse(stored, r"crash\.yaml")


def test_bytes_that_are_no_text_are_refused(stored: Path) -> None:
    (stored / "crash.yaml").write_bytes(b"\xff\xfe\x00id")
    refuse(stored, "UTF-8")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"id": "../../etc/passwd"}, "not that of its signature"),
        ({"id": 7}, "id"),
        ({"format": 99}, "format 99"),
        ({"label": "numeric/nonsense"}, "no label"),
        ({"severity": "awful"}, "severity"),
        ({"blame": "me"}, "Blame"),
        ({"rng_seed": "0"}, "rng_seed"),
        ({"expect": "explodes"}, "expect"),
        ({"evidence": "text"}, "evidence"),
        ({"target": "inductor:cpu"}, "not that of the signature"),
        ({"target": "no backend"}, "runtime:device"),
        ({"surprise": 1}, "surprise"),
        ({"recipe": {"draw": -1}}, "draw"),
        ({"recipe": {"draw": 0, "steps": [{"mutator": "no_such_mutator", "params": {}}]}}, "no_such_mutator"),
        ({"files": {}}, "inputs.safetensors is missing"),
        ({"files": {"../x": "0" * 64, "inputs.safetensors": "0" * 64}}, "no file of a crash"),
        ({"files": {"/etc/passwd": "0" * 64}}, "no file of a crash"),
        ({"files": {"inputs.safetensors": "abc"}}, "no SHA-256"),
        ({"base": "a\0b"}, "base"),
        ({"seed": {"name": "pool"}}, "seed"),
        ({"statistics": {"differences": []}}, "statistics"),
        ({"activations": {"points": [{"name": "fc", "gap": 10**400}]}}, "activations.points.0.gap"),
        ({"diagnosis": 5}, "diagnosis"),
        ({"diagnosis": {"interventions": 5}}, "diagnosis.interventions"),
        ({"diagnosis": {"interventions": ["rerun"]}}, "diagnosis.interventions.0"),
        ({"diagnosis": {"stages": [{}]}}, "diagnosis.stages.0"),
        ({"mitigations": [{"restores": "yes"}]}, "mitigations.0.restores"),
        ({"mitigations": [{"restores": True, "tiers": ["pass"]}]}, "mitigations.0.tiers"),
        ({"mitigations": [{"restores": True, "latency_ms": 10**400}]}, "mitigations.0.latency_ms"),
    ],
)
def test_a_value_that_cannot_be_is_refused_in_one_line(stored: Path, changes: dict[str, Any], match: str) -> None:
    edit(stored, **changes)
    refuse(stored, match)


def test_links_are_not_followed(stored: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    (stored / "inputs.safetensors").rename(secret)
    (stored / "inputs.safetensors").symlink_to(secret)
    refuse(stored, "not a plain file")


def test_a_pipe_is_refused_without_waiting_for_it(stored: Path) -> None:
    (stored / "inputs.safetensors").unlink()
    os.mkfifo(stored / "inputs.safetensors")
    refuse(stored, "not a plain file")


def test_a_huge_file_is_refused_by_its_size(stored: Path) -> None:
    with open(stored / "inputs.safetensors", "wb") as stream:
        stream.truncate(2**30 + 1)  # sparse: takes no room
    refuse(stored, "more than")


def put(folder: Path, data: bytes) -> None:
    """Replace the inputs, with the right hash: what a careful attacker does."""
    (folder / "inputs.safetensors").write_bytes(data)
    files = yaml.safe_load((folder / "crash.yaml").read_text())["files"]
    edit(folder, files=files | {"inputs.safetensors": hashlib.sha256(data).hexdigest()})


@pytest.mark.parametrize(
    ("tensors", "match"),
    [
        ({"x": torch.zeros(1, 1, 4, 4, dtype=torch.float64)}, "x is float64, the seed says float32"),
        ({"x": torch.zeros(4, 4)}, "shape"),
        ({"y": torch.zeros(1, 1, 4, 4)}, "the seed has the inputs x"),
        ({}, "the seed has the inputs x"),
    ],
)
def test_inputs_that_do_not_fit_the_seed_are_refused(stored: Path, tensors: dict[str, Tensor], match: str) -> None:
    put(stored, encode(tensors))
    refuse(stored, match)


@pytest.mark.parametrize("data", [b"", b"\x00" * 8, b"\xff" * 64, b"\x05\x00\x00\x00\x00\x00\x00\x00[1,2]"])
def test_bytes_that_are_no_tensors_are_refused(stored: Path, data: bytes) -> None:
    put(stored, data)
    refuse(stored, "cannot be read as tensors")


# Trust


def test_a_projects_own_builder_needs_no_trust(stored: Path, tmp_path: Path) -> None:
    assert needs_trust(load_crash(stored), tmp_path) is None


def test_code_outside_the_project_needs_trust(stored: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    reason = needs_trust(load_crash(stored), elsewhere)
    assert reason is not None
    assert "outside" in reason


def test_code_that_came_with_the_crash_needs_trust(crash: Crash, tmp_path: Path) -> None:
    home = write_crash(tmp_path / "crashes", crash)
    (home / "pool.py").write_text(POOL)
    edit(home, base=".")
    reason = needs_trust(load_crash(home), tmp_path)
    assert reason is not None
    assert "crash's folder" in reason


@pytest.mark.parametrize("builder", ["subprocess:call", "os:system", "torch.hub:load", "no_such_module_at_all:x"])
@pytest.mark.parametrize("path", [None, "."])
def test_functions_that_are_not_the_projects_need_trust(stored: Path, tmp_path: Path, builder: str, path: Any) -> None:
    data = yaml.safe_load((stored / "crash.yaml").read_text())["seed"]
    data["model"] |= {"builder": builder, "args": {"command": "true"}}
    data["model"].pop("path")
    data["model"] |= {} if path is None else {"path": path}
    edit(stored, seed=data)
    assert needs_trust(load_crash(stored), tmp_path) is not None


@pytest.mark.parametrize("attribute", ["torch.hub.load", "nn", "torch"])
def test_a_name_that_the_projects_file_only_imports_needs_trust(stored: Path, tmp_path: Path, attribute: str) -> None:
    data = yaml.safe_load((stored / "crash.yaml").read_text())["seed"]
    data["model"]["builder"] = f"pool:{attribute}"
    edit(stored, seed=data)
    reason = needs_trust(load_crash(stored), tmp_path)
    assert reason is not None
    assert "does not define" in reason


def test_a_library_model_runs_no_code_of_the_crash(tmp_path: Path) -> None:
    seed = builder_seed(tmp_path, model={"source": "library", "name": "resnet18", "weights": {"kind": "random"}})
    assert needs_trust(pool_crash(seed), tmp_path / "elsewhere") is None


def hub_or_repo_crash(folder: Path, source: str) -> Crash:
    """A crash whose seed names `Pool` in a `hubconf.py`, or in a package of a repository, in `folder`."""
    file = folder / ("hubconf.py" if source == "hub" else "nets/pool.py")
    file.parent.mkdir(parents=True, exist_ok=True)
    (file.parent / "__init__.py").touch()
    file.write_text(POOL)
    names = {"name": "Pool"} if source == "hub" else {"builder": "nets.pool:Pool"}
    seed = builder_seed(folder.parent, model={"source": source, "path": folder.name, **names})
    return pool_crash(seed)


@pytest.mark.parametrize("source", ["hub", "repo"])
def test_a_hub_folder_or_repository_needs_trust_outside_the_project_only(source: str, tmp_path: Path) -> None:
    crash = hub_or_repo_crash(tmp_path / "project" / "models", source)
    assert needs_trust(crash, tmp_path / "project") is None
    (tmp_path / "other").mkdir()
    assert "outside" in str(needs_trust(crash, tmp_path / "other"))


@pytest.mark.parametrize("source", ["hub", "repo"])
def test_a_hub_folder_or_repository_in_a_crash_folder_needs_trust(source: str, tmp_path: Path) -> None:
    crash = hub_or_repo_crash(tmp_path / "crashes" / "one" / "models", source)
    (tmp_path / "crashes" / "one" / "crash.yaml").touch()
    assert "crash's folder" in str(needs_trust(crash, tmp_path))


def test_an_entry_point_that_the_hubconf_only_imports_needs_trust(tmp_path: Path) -> None:
    hub_or_repo_crash(tmp_path / "models", "hub")
    model = {"source": "hub", "path": "models", "name": "torch"}
    assert "does not define" in str(needs_trust(pool_crash(builder_seed(tmp_path, model=model)), tmp_path))


def test_a_repository_of_torch_hub_needs_trust_wherever_its_copy_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path))
    hub_or_repo_crash(tmp_path / "owner_models_main", "hub")
    model = {"source": "hub", "repo": "owner/models:main", "name": "Pool"}
    reason = needs_trust(pool_crash(builder_seed(tmp_path, model=model)), tmp_path)
    assert reason == "its seed runs code of owner/models:main from torch.hub"


# Literals


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(DTYPES), st.binary(min_size=16, max_size=16))
def test_a_literal_gives_back_every_bit(dtype: torch.dtype, data: bytes) -> None:
    tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype)
    back = eval(literal(tensor), {"torch": torch, "nan": float("nan"), "inf": float("inf")})
    assert back.dtype == dtype
    assert raw_bytes(back) == raw_bytes(tensor)


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.tensor([0.1, -0.0]), "torch.tensor([0.1, -0.0], dtype=torch.float32)"),
        (torch.tensor([float("nan"), float("-inf")]), "torch.tensor([nan, -inf], dtype=torch.float32)"),
        (torch.tensor(1e-45), "torch.tensor(1e-45, dtype=torch.float32)"),
        (torch.zeros(0, 4), "torch.empty((0, 4), dtype=torch.float32)"),
        (torch.tensor([True]), "torch.tensor([True], dtype=torch.bool)"),
        (
            torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32),
            "torch.tensor([2143289345], dtype=torch.int32).view(torch.float32)",
        ),
    ],
)
def test_a_literal_is_as_readable_as_its_bits_allow(tensor: Tensor, text: str) -> None:
    assert literal(tensor) == text


def test_all_that_hangs_on_near_ties_is_one_crash_whichever_leaf_shows_it() -> None:
    tie = Label("order", "near-tie", confirmed=False)
    ids = set()
    for path, kind in ((".boxes", Kind.SHAPE), (".labels", Kind.INTEGER), (".scores", Kind.VALUE)):
        verdict = Verdict(Outcome.MISMATCH, differences=[Difference(path, kind, "", near_tie=True)])
        ids.add(signature_of("tiny", "inductor:cpu", verdict, tie).id)
    assert len(ids) == 1
    mixed = [Difference(".boxes", Kind.VALUE, "", near_tie=True), Difference(".labels", Kind.INTEGER, "")]
    beside = signature_of("tiny", "inductor:cpu", Verdict(Outcome.MISMATCH, differences=mixed), tie)
    assert (beside.leaf, beside.kind) == (".labels", "integer")
