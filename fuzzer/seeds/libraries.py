"""First seeds of models that torchvision, timm and transformers have by name. Nothing is built or fetched."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from fuzzer.errors import SeedError
from fuzzer.seeds.problems import did_you_mean

#: Pixels a side of a guessed image; models that take one size only get theirs.
PIXELS = 64
_FIXED_PIXELS = (("vit_", 224), ("maxvit", 224), ("inception", 299), ("ssd300", 300), ("ssdlite320", 320))
_DETECTOR_PIXELS = 128
_MEAN, _STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
#: Sizes of a transformer that is small enough to be run some thousand times, by the names that most configurations use.
_SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 128,
}
_VOCABULARY, _LENGTH, _SAMPLES = 1000, 16, 4000
_TASKS = (
    (("ForSequenceClassification", "ForImageClassification", "ForAudioClassification"), "classification"),
    (("ForMaskedLM", "ForCausalLM", "LMHeadModel", "ForTokenClassification", "ForConditionalGeneration"), "tokens"),
)


def library_seed(spec: str) -> dict[str, Any]:
    """The seed, as data, of `torchvision:NAME`, `timm:NAME` or `transformers:NAME`; weights are calibrated.

    Raises SeedError where the library is not installed, has no such model, or has one whose inputs cannot be guessed.
    """
    library, _, name = spec.partition(":")
    return _SEEDS[library](spec, name)


def detector_args(name: str, side: int | None) -> dict[str, Any]:
    """Arguments with which torchvision's detector `name` answers tens of boxes to any image of `side` pixels.

    None: its size is fixed. Scores of calibrated weights are of any size, so that any threshold may leave an empty
    list, from which nothing can be told: the best by rank are kept instead. Weights calibrated with `noise` keep their
    scores apart.
    """
    size = {} if side is None else {"min_size": side, "max_size": side}
    if "rcnn" in name:
        few = {"rpn_pre_nms_top_n_test": 200, "rpn_post_nms_top_n_test": 100, "box_detections_per_img": 50}
        return size | few | {"box_score_thresh": 0.0}
    return size | {"score_thresh": 0.0, "topk_candidates": 50, "detections_per_img": 50}


def _torchvision(spec: str, name: str) -> dict[str, Any]:
    family, plain = _family(name), name.rpartition(".")[2]
    pixels = next((size for start, size in _FIXED_PIXELS if plain.startswith(start)), None)
    args: dict[str, Any] = {}
    image: dict[str, Any] = {"kind": "image", "range": [0, 1]}
    if family == "detection":
        side = pixels or _DETECTOR_PIXELS
        args = detector_args(plain, None if pixels else side)
        image["shape"] = [3, side, side]
    else:
        image |= {"shape": [1, 3, pixels or PIXELS, pixels or PIXELS], "mean": _MEAN, "std": _STD}
    outputs = {
        "classification": {"logits": "$"},
        "segmentation": {"logits": ".out"},
        "detection": {"boxes": "[0].boxes", "scores": "[0].scores", "labels": "[0].labels"},
    }[family]
    return {
        "name": plain,
        "about": f"torchvision's {name}, calibrated weights",
        "model": {
            "source": "library",
            "name": name,
            "args": args,
            "weights": {"kind": "calibrated", "noise": True} if family == "detection" else "calibrated",
        },
        "inputs": {"image": image},
        "call": [["image"]] if family == "detection" else None,
        "task": {"kind": family, "outputs": outputs},
    }


def _family(name: str) -> str:
    """What a torchvision model is for, by the module that has it. Raises SeedError for other families and no model."""
    from torchvision import models  # takes a second: only where one is asked for

    plain = name.rpartition(".")[2]
    known: list[str] = []
    for family, module in (
        ("classification", models),
        ("segmentation", models.segmentation),
        ("detection", models.detection),
    ):
        names = [each for each in models.list_models(module=module) if "keypoint" not in each]
        if plain in names:
            return family
        known += names
    hint = did_you_mean(plain, known) or "write a seed for it"
    raise SeedError([f"torchvision:{name}: no classifier, segmenter or detector of torchvision; {hint}"])


def _timm(spec: str, name: str) -> dict[str, Any]:
    timm = _imported(spec, "timm")
    known = timm.list_models()
    if name.partition(".")[0] not in known:
        raise SeedError(
            [f"{spec}: timm has no such model; {did_you_mean(name, known) or 'timm.list_models() has all'}"]
        )
    config = timm.get_pretrained_cfg(name.partition(".")[0])
    size = [3, PIXELS, PIXELS]
    if config is not None:
        channels, *sides = config.input_size
        least = config.min_input_size or size
        size = [channels, *(sides if config.fixed_input_size else (max(PIXELS, side) for side in least[1:]))]
    classes = config is None or config.num_classes
    image: dict[str, Any] = {"kind": "image", "range": [0, 1], "shape": [1, *size]}
    if config is not None and len(config.mean) == len(config.std) == size[0]:
        image |= {"mean": list(config.mean), "std": list(config.std)}
    return {
        "name": name,
        "about": f"timm's {name}, calibrated weights",
        "model": {"source": "library", "library": "timm", "name": name.partition(".")[0], "weights": "calibrated"},
        "inputs": {"image": image},
        "task": {"kind": "classification", "outputs": {"logits": "$"}} if classes else {"kind": "tensors"},
    }


def _transformers(spec: str, name: str) -> dict[str, Any]:
    """Small, by the sizes that most configurations share; inputs by what the class calls its main one."""
    transformers = _imported(spec, "transformers")
    types = transformers.CONFIG_MAPPING
    if name in types:
        made = transformers.MODEL_MAPPING.get(types[name], None)
        cls = made[0] if isinstance(made, tuple) else made
    else:
        cls = getattr(transformers, name, None)
    if getattr(cls, "config_class", None) is None:
        known = [*types, *(each for each in dir(transformers) if each[:1].isupper() and "For" in each)]
        raise SeedError([f"{spec}: transformers has no such model; {did_you_mean(name, known) or 'write a seed'}"])
    assert cls is not None
    config = cls.config_class()
    if getattr(config, "sub_configs", None):
        raise SeedError([f"{spec}: it is made of several models, whose sizes are not guessed; write a seed"])
    # Networks in stages (Swin, ConvNeXt) count depths and widths otherwise, and their windows need the usual image.
    staged = hasattr(config, "depths")
    args = {key: size for key, size in _SMALL.items() if isinstance(getattr(config, key, None), int) and not staged}
    if _small_vocabulary(config):
        args["vocab_size"] = _VOCABULARY
    inputs = _inputs(spec, cls.main_input_name, config, args)
    if "input_ids" in inputs and config.is_encoder_decoder:
        inputs["decoder_input_ids"] = dict(inputs["input_ids"])
    kind = next((kind for ends, kind in _TASKS if cls.__name__.endswith(ends)), "tensors")
    return {
        "name": name,
        "about": f"transformers' {name} with a small configuration, calibrated weights",
        "model": {
            "source": "library",
            "library": "transformers",
            "name": name,
            "args": args,
            "weights": "calibrated",
        },
        "inputs": inputs,
        "call": {"args": [], "kwargs": {each: each for each in inputs}},
        "task": {"kind": kind, "outputs": {} if kind == "tensors" else {"logits": ".logits"}},
    }


def _small_vocabulary(config: Any) -> bool:
    """Whether the configuration has a vocabulary that can be cut, its token for padding inside."""
    pad = getattr(config, "pad_token_id", None)
    return (getattr(config, "vocab_size", None) or 0) > _VOCABULARY and (pad is None or pad < _VOCABULARY)


def _inputs(spec: str, main: str, config: Any, args: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The main input of a class of transformers; adds to `args` what makes it small. Raises SeedError for others."""
    if main == "input_ids":
        words = args.get("vocab_size", config.vocab_size)
        return {main: {"kind": "tokens", "shape": [1, _LENGTH], "range": [0, words]}}
    if main == "pixel_values":
        size, patch = getattr(config, "image_size", None), getattr(config, "patch_size", 1)
        if isinstance(size, int) and isinstance(patch, int) and PIXELS % patch == 0 and not hasattr(config, "depths"):
            args["image_size"] = PIXELS
        side = size if isinstance(size, int) and "image_size" not in args else PIXELS
        return {main: {"kind": "image", "shape": [1, getattr(config, "num_channels", 3), side, side], "range": [0, 1]}}
    if main == "input_values":
        return {main: {"kind": "floats", "shape": [1, _SAMPLES], "range": [-1, 1]}}
    raise SeedError([f"{spec}: what its input {main} looks like is not guessed; write a seed"])


def _imported(spec: str, package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise SeedError([f"{spec}: the package {package} is not installed; pip install xbfuzz[{package}]"]) from error


_SEEDS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "transformers": _transformers,
}
#: The libraries whose models can be named so.
LIBRARIES = tuple(_SEEDS)
