"""Silero VAD at 16 kHz (MIT): the network of the file `silero_vad.jit`, with its weights, in plain PyTorch."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SileroVAD(nn.Module):
    """samples (1, 576) float in [-1, 1], state (2, 1, 128) → speech (1, 1) in [0, 1], and the next state.

    64 samples of the last chunk stand before 512 new ones. `state` is the LSTM cell's h and c, at first zeros.
    """

    def __init__(self) -> None:
        super().__init__()
        self.basis = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        strides = (1, 2, 2, 1)
        widths = (129, 128, 64, 64, 128)
        self.encoder = nn.ModuleList(nn.Conv1d(widths[i], widths[i + 1], 3, strides[i], 1) for i in range(4))
        self.cell = nn.LSTMCell(128, 128)
        self.last = nn.Conv1d(128, 1, 1)

    def forward(self, samples: Tensor, state: Tensor) -> dict[str, Tensor]:
        spectrum = self.basis(F.pad(samples, (0, 64), mode="reflect").unsqueeze(1))
        x = (spectrum[:, :129] ** 2 + spectrum[:, 129:] ** 2).sqrt()
        for layer in self.encoder:
            x = layer(x).relu()
        h, c = self.cell(x.squeeze(-1), (state[0], state[1]))
        speech = torch.sigmoid(self.last(h.relu().unsqueeze(-1))).squeeze(1)
        return {"speech": speech, "state": torch.stack([h, c])}


def located(text: str) -> Path:
    """`package:NAME/FILE` as a path; the package is not imported."""
    name, _, inside = text.removeprefix("package:").partition("/")
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"the package {name} is not installed")
    return Path(spec.submodule_search_locations[0]) / inside


def pretrained(weights: str) -> SileroVAD:
    """With the weights of the TorchScript file `weights` (`package:NAME/FILE`)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = torch.jit.load(str(located(weights)), map_location="cpu").state_dict()
    names = {
        "basis.weight": "stft.forward_basis_buffer",
        **{f"encoder.{i}.{part}": f"encoder.{i}.reparam_conv.{part}" for i in range(4) for part in ("weight", "bias")},
        **{f"cell.{part}": f"decoder.rnn.{part}" for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")},
        **{f"last.{part}": f"decoder.decoder.2.{part}" for part in ("weight", "bias")},
    }
    made = SileroVAD()
    made.load_state_dict({name: found[f"_model.{theirs}"] for name, theirs in names.items()})
    return made
