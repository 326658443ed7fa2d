"""Make the dumps of this folder again, with mindstudio-probe in the environment.

python small_model.py tensors tensor mix          with values, and the module of each call
python small_model.py statistics statistics L1    max, min, mean and norm alone
"""

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """A head of attention and a feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.query, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.query(self.norm(x))
        a = functional.softmax(h @ h.transpose(-1, -2) / 8**0.5, -1) @ h
        return x + self.down(functional.silu(self.up(x + a)))


class Model(nn.Module):
    """An embedding, a block and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.layers, self.head = nn.Embedding(20, 8), nn.ModuleList([Block()]), nn.Linear(8, 20, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.emb(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


if __name__ == "__main__":
    folder, task, level = sys.argv[1:4]
    asked = {"task": task, "dump_path": folder, "rank": [], "step": [0], "level": level, "async_dump": False}
    Path("config.json").write_text(json.dumps({**asked, task: {"scope": [], "list": [], "data_mode": ["all"]}}))
    from msprobe.pytorch import PrecisionDebugger

    torch.manual_seed(0)
    model, debugger = Model(), PrecisionDebugger(config_path="config.json")
    tokens = torch.randint(0, 20, (2, 6))
    debugger.start(model)
    functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    debugger.stop()
    debugger.step()
