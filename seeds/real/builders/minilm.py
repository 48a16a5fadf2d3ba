"""all-MiniLM-L6-v2 (Apache 2.0): one vector for a sentence. BERT by transformers, then the mean over its words."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F


class SentenceEmbedding(nn.Module):
    """ids (n, length) int64, mask (n, length), 1 for a word → (n, 384) of length 1."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        sizes = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 12}
        self.bert = BertModel(BertConfig(**sizes), add_pooling_layer=False)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        words = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        weight = mask.unsqueeze(-1).to(words.dtype)
        return F.normalize((words * weight).sum(1) / weight.sum(1).clamp(min=1e-9), dim=1)


def located(text: str) -> Path:
    """`package:NAME/FILE` as a path; the package is not imported."""
    name, _, inside = text.removeprefix("package:").partition("/")
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"the package {name} is not installed")
    return Path(spec.submodule_search_locations[0]) / inside


def pretrained(weights: str) -> SentenceEmbedding:
    """With the weights of the safetensors file `weights` (`package:NAME/FILE`)."""
    tensors = load_file(located(weights))
    made = SentenceEmbedding()
    wanted = made.bert.state_dict()
    made.bert.load_state_dict({name: value for name, value in tensors.items() if name in wanted})
    return made
