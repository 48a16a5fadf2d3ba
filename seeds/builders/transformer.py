"""A small pre-norm transformer block with a padding mask."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """tokens (batch, length, width) float, mask (batch, length) bool, True where a token counts → same shape as tokens.

    A sequence without any token that counts is a question that backends answer differently.
    """

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                # Wider than the usual 0.02: attention that chooses and an MLP that counts beside the residual.
                nn.init.normal_(layer.weight, std=1.5 / layer.in_features**0.5)
                nn.init.normal_(layer.bias, std=0.2)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = tokens.shape
        heads = self.qkv(self.norm1(tokens)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])
        tokens = tokens + self.project(attended.transpose(1, 2).reshape(batch, length, width))
        return tokens + self.mlp(self.norm2(tokens))
