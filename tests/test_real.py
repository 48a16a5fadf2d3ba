"""Seeds with trained weights from installed packages: the conversions are the networks, and the samples mean something.

Each is tested where its package is installed; `make real-weights` installs what the development extra does not.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzzer.inputs import base_sample
from fuzzer.models import build_model
from fuzzer.seeds import Seed, load_seed, load_seeds
from fuzzer.seeds.packages import missing_packages, placed
from fuzzer.trees import flatten
from fuzzer.verify.tasks import check_task
from fuzzer.verify.vacuity import informative_leaves

REAL = Path(__file__).parent.parent / "seeds" / "real"
NAMES = sorted(path.stem for path in REAL.glob("*.yaml"))


def real(name: str) -> Seed:
    seed = load_seed(REAL / f"{name}.yaml")
    if seed.unavailable:
        pytest.skip(seed.unavailable)
    if name in ("file_type", "text_detector", "text_recogniser"):
        pytest.importorskip("onnx2torch")
    if name == "sentence":
        pytest.importorskip("transformers")
    return seed


def answers(seed: Seed) -> list[Any]:
    model = build_model(seed, None)
    assert model.module is not None, model.no_module
    found = []
    with torch.no_grad():
        for draw in range(4):
            args, kwargs = model.call(base_sample(seed, draw))
            found.append(model.module(*args, **kwargs))
    return found


def test_there_are_seven_and_each_loads_with_or_without_its_package() -> None:
    seeds = load_seeds([REAL])
    assert len(seeds) == 7
    for seed in seeds:
        check_task(seed.task)
        assert seed.name in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_output_depends_on_the_input(name: str) -> None:
    seed = real(name)
    found = informative_leaves([flatten(answer) for answer in answers(seed)], seed.tolerance)
    assert not found.vacuous, found.reasons
    assert found.reasons == {}


def test_the_voice_detector_is_the_torchscript_file() -> None:
    seed = real("speech")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = placed(Path(), "package:silero_vad/data/silero_vad.jit")
        original = torch.jit.load(str(path))._model
    for draw, answer in enumerate(answers(seed)):
        sample = base_sample(seed, draw)
        with torch.no_grad():
            speech, state = original(sample["samples"], sample["state"])
        torch.testing.assert_close(answer["speech"], speech, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(answer["state"], state.reshape(2, 1, 128), atol=1e-6, rtol=1e-5)


def test_the_voice_detector_tells_a_voice_from_silence() -> None:
    speech = [float(answer["speech"]) for answer in answers(real("speech"))]
    assert min(speech[:2]) > 0.9
    assert max(speech[2:]) < 0.1


def test_the_pitch_is_that_of_the_tone() -> None:
    """CREPE's bins are 20 cents apart; bin 0 lies 1997.379 cents over 10 Hz."""
    heard = [10 * 2 ** ((20 * answer.argmax(1).double() + 1997.3794) / 1200) for answer in answers(real("pitch"))]
    for frequencies, played in zip(heard, (110.0, 220.0, 440.0, 330.0), strict=True):
        wanted = torch.tensor([played, 1.25 * played], dtype=torch.float64)
        assert ((frequencies / wanted).log2().abs() * 1200 < 30).all(), (frequencies, wanted)


def test_the_astronaut_has_a_face_where_the_face_is() -> None:
    scores = answers(real("face"))[0]["scores"][0, 1]
    row, column = divmod(int(scores.argmax()), scores.shape[1])
    assert scores.max() > 0.9
    # In the photograph, 512 pixels wide, the face lies around x = 225, y = 115; a cell looks at 12 of 80 pixels.
    assert abs((2 * column + 6) / 80 - 225 / 512) < 0.1
    assert abs((2 * row + 6) / 80 - 115 / 512) < 0.1


def test_sentences_that_mean_the_same_are_near() -> None:
    same, other = [], []
    for answer in answers(real("sentence")):
        assert torch.allclose(answer.norm(dim=1), torch.ones(3))
        same.append(float(answer[0] @ answer[1]))
        other.append(float(answer[0] @ answer[2]))
    assert min(same) > 0.4 > 0.3 > max(other)


def test_the_file_types_are_those_of_the_files() -> None:
    import json

    seed = real("file_type")
    labels = json.loads(placed(Path(), "package:magika/models/standard_v3_3/config.min.json").read_text())
    told = [labels["target_labels_space"][int(answer["target_label"].argmax())] for answer in answers(seed)]
    assert told == ["python", "json", "html", "c"]


def test_the_recogniser_reads_the_words_that_were_drawn() -> None:
    import onnx

    seed = real("text_recogniser")
    assert seed.model.path is not None
    file = onnx.load(str(seed.path(seed.model.path)))
    known = next(item.value for item in file.metadata_props if item.key == "character").splitlines()
    letters = ["", *known, " "]
    read = []
    for answer in answers(seed):
        (scores,) = answer.values()
        steps = scores[0].argmax(1).tolist()
        kept = [step for i, step in enumerate(steps) if step and (i == 0 or step != steps[i - 1])]
        read.append("".join(letters[step] for step in kept))
    assert read == ["Hello world", "Invoice 2741", "differential", "Exit 12 north"]


def test_the_detector_finds_two_lines_of_text() -> None:
    for answer in answers(real("text_detector")):
        (scores,) = answer.values()
        inked = (scores[0, 0] > 0.3).any(dim=1).tolist()
        starts = sum(now and not before for before, now in zip([False, *inked], inked, strict=False))
        assert starts == 2


PACKAGED = """
name: packaged
model: {source: onnx, path: "package:no_such_package_here/model.onnx"}
inputs: {x: {kind: floats, shape: [2]}}
"""


def test_a_seed_of_a_package_that_is_missing_is_unavailable_and_no_error(tmp_path: Path) -> None:
    from fuzzer.campaign.lane import Lane
    from fuzzer.campaign.plan import Options, make_plan
    from fuzzer.place import surroundings

    path = tmp_path / "packaged.yaml"
    path.write_text(PACKAGED.replace("shape: [2]", 'shape: [2], files: ["package:no_such_package_here/x.npy"]'))
    seed = load_seed(path)
    assert seed.unavailable == "the package no_such_package_here is not installed; pip install xbfuzz[real]"
    planned = make_plan([seed], Options(tmp_path, max_execs=4)).seeds[0]
    lane = Lane(planned, surroundings(tmp_path), 0, [])
    assert lane.finished
    assert lane.failed == seed.unavailable


def test_a_file_of_a_package_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "has_weights"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('nobody imports this')\n")
    (package / "data" / "w.bin").write_bytes(b"weights")
    monkeypatch.syspath_prepend(tmp_path)
    assert placed(Path("/base"), "package:has_weights/data/w.bin").read_bytes() == b"weights"
    assert placed(Path("/base"), "data/w.bin") == Path("/base/data/w.bin")
    named = {"model": {"path": "package:has_weights/a"}, "inputs": {"x": {"files": ["package:not_there_at_all/b"]}}}
    assert missing_packages(named) == ["not_there_at_all"]
