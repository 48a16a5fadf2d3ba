"""The models of the study (arXiv 2509.06977, its heat map) as seeds, with calibrated weights and small inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzzer.seeds import Seed
from fuzzer.seeds.libraries import detector_args

#: What each kind of model is compared on by default: what takes it in reasonable time on a CPU.
TARGETS = {
    "classification": ("onnxruntime:cpu",),
    "segmentation": ("onnxruntime:cpu",),
    "detection": ("aot_eager:cpu",),
}
_MEAN, _STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
_OUTPUTS = {
    "classification": {"logits": "$"},
    "segmentation": {"logits": ".out"},
    "detection": {"boxes": "[0].boxes", "scores": "[0].scores", "labels": "[0].labels"},
}


@dataclass(frozen=True)
class StudyModel:
    """A model by torchvision's name, at so many pixels a side; `args` of its constructor."""

    name: str
    pixels: int = 64
    args: dict[str, Any] = field(default_factory=dict)
    #: Processor seconds of preparation and 50 executions, roughly: by this models are divided into groups.
    cost: int = 60

    @property
    def short(self) -> str:
        """The name without its family: that of its seed."""
        return self.name.rpartition(".")[2]

    @property
    def task(self) -> str:
        family = self.name.rpartition(".")[0]
        return family or "classification"

    def seed(self, targets: tuple[str, ...] = ()) -> Seed:
        """Its seed, compared on `targets`, or on those of its task."""
        side, detector = self.pixels, self.task == "detection"
        args = detector_args(self.short, None if self.short.startswith("ssd") else side) if detector else self.args
        image: dict[str, Any] = {"kind": "image", "range": [0, 1]}
        # Detectors normalise by themselves.
        image |= {"shape": [3, side, side]} if detector else {"shape": [1, 3, side, side], "mean": _MEAN, "std": _STD}
        return Seed.model_validate(
            {
                "name": self.short,
                "about": f"the study's {self.name} at {side} pixels, calibrated weights",
                "model": {
                    "source": "library",
                    "name": self.name,
                    "args": args,
                    "weights": {"kind": "calibrated", "seed": 0} | ({"noise": True} if detector else {}),
                },
                "inputs": {"image": image},
                "call": [["image"]] if detector else None,
                "task": {"kind": self.task, "outputs": _OUTPUTS[self.task]},
                "backends": list(targets or TARGETS[self.task]),
                # In an image with NaN a detector finds nothing, and nothing is compared.
                "allow": {"nonfinite": False, "beyond_range": False} if detector else {},
            }
        )


#: Eighteen of the nineteen; small and quick ones first.
MODELS = (
    StudyModel("squeezenet1_1", cost=20),
    StudyModel("resnet18", cost=28),
    StudyModel("alexnet", cost=85),
    StudyModel("mobilenet_v2", cost=26),
    StudyModel("mnasnet1_0", cost=26),
    StudyModel("efficientnet_b0", cost=32),
    StudyModel("resnet50", cost=45),
    StudyModel("densenet121", cost=40),
    StudyModel("convnext_tiny", cost=50),
    StudyModel("vit_b_16", 64, {"image_size": 64}, cost=105),
    StudyModel("regnet_y_8gf", cost=60),
    StudyModel("segmentation.lraspp_mobilenet_v3_large", cost=28),
    StudyModel("segmentation.deeplabv3_resnet50", cost=65),
    StudyModel("segmentation.fcn_resnet50", cost=60),
    StudyModel("detection.ssdlite320_mobilenet_v3_large", 320, cost=55),
    StudyModel("detection.retinanet_resnet50_fpn_v2", 128, cost=85),
    StudyModel("detection.fasterrcnn_resnet50_fpn", 128, cost=90),
    StudyModel("detection.ssd300_vgg16", 300, cost=190),
)


def group(i: int, n: int) -> list[StudyModel]:
    """The `i`-th, from 1, of `n` groups of MODELS that cost about the same: each model goes to the cheapest so far."""
    groups: list[list[StudyModel]] = [[] for _ in range(n)]
    for model in sorted(MODELS, key=lambda model: -model.cost):
        min(groups, key=lambda held: sum(other.cost for other in held)).append(model)
    return groups[i - 1]


def yolov5n(folder: Path, targets: tuple[str, ...] = ()) -> Seed:
    """The nineteenth, which comes with no library: from a checkout of its repository, or a folder with its package.

    The package is `yolov5` with what it imports, installed by `pip install --target`.
    """
    package = "yolov5" if (folder / "yolov5" / "models" / "yolo.py").is_file() else ""
    return Seed.model_validate(
        {
            "name": "yolov5n",
            "about": "the study's YOLOv5n at 64 pixels, calibrated weights",
            "model": {
                "source": "repo",
                "path": str(folder.resolve()),
                "builder": f"{package}.models.yolo:DetectionModel".lstrip("."),
                "args": {"cfg": f"{package}/models/yolov5n.yaml".lstrip("/")},
                "weights": {"kind": "calibrated", "seed": 0},
            },
            "inputs": {"image": {"kind": "image", "shape": [1, 3, 64, 64], "range": [0, 1]}},
            "backends": list(targets or TARGETS["classification"]),
        }
    )
