"""Turn a hidden state and the token behind it into a state that predicts one token further: multi-token prediction.

    joined = [norm(Emb(token i + k)); norm(h of depth k - 1)]       h = layer(projection joined)        k = 1 ... depth
    loss = main + weight / depth  sum over k of cross-entropy(head(norm(h of depth k)), token i + k + 1)

The halves stand in the order of DeepSeek-V3's files. h of depth 0 is the model's output behind its final norm, as
Megatron and vLLM have it. Embedding and head are the model's own.
Tensor ranks share the projection's outputs, as lowering prices it: joined inputs are gathered, and so is the width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ridgeline.models.spec import Mtp
from ridgeline.runtime.train.exchange import merge, split
from ridgeline.runtime.train.mixers import enter
from ridgeline.runtime.train.recompute import maybe_recompute
from ridgeline.runtime.train.weights import Maker, Matrix, Norm


class Prediction(nn.Module):  # type: ignore[misc]
    """One depth of multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2).

    layer    the transformer block
    again    entry and layer are computed again on the way back (full recompute)
    """

    def __init__(self, make: Maker, mtp: Mtp, hidden: int, layer: nn.Module, *, again: bool) -> None:
        super().__init__()
        self.layout, self.again = make.layout, again
        self.embedding_norm = Norm(make, mtp.block.norm, hidden)
        self.hidden_norm = Norm(make, mtp.block.norm, hidden)
        self.projection = Matrix(make, hidden, 2 * hidden, "out")
        self.layer = layer
        self.norm = Norm(make, mtp.block.norm, hidden)

    def forward(self, state: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The state of this depth, and what of it the head reads; `rows` are the further tokens' embeddings."""
        state = maybe_recompute(self._state, state, rows, again=self.again)
        return state, self.norm(state)

    def _state(self, state: Tensor, rows: Tensor) -> Tensor:
        layout = self.layout
        both_states = torch.cat((self.embedding_norm(rows), self.hidden_norm(state)), -1)
        projection = merge(self.projection(enter(both_states, layout)), layout.tp, -1)
        return self.layer(split(projection, layout.tp, 1) if layout.sequence_parallel else projection)
