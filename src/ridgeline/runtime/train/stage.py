"""A virtual stage of the model: embedding, layers, norm and head, as far as it holds them; and the loss behind it.

The vocabulary is split over the tensor ranks at both ends: rows of other ranks are zeros that the sum removes, and the
loss is computed from the logits of each rank without gathering them (parallel cross-entropy).

Multi-token prediction turns a hidden state and the token behind it into a state that predicts one token further:

    both = [norm(Emb(token i + k)); norm(h of depth k - 1)]       h = layer(projection both)        k = 1 ... depth
    loss = main + weight / depth  sum over k of cross-entropy(head(norm(h of depth k)), token i + k + 1)

The halves stand in the order of DeepSeek-V3's files. h of depth 0 is the model's output behind its final norm, as
Megatron and vLLM have it. Embedding and head are the model's own. Tensor ranks share the projection's outputs, as
lowering prices it: joined inputs are gathered, and so is the width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional

from ridgeline.models.spec import Block, ModelSpec, Mtp
from ridgeline.runtime.train.fused import fused_cross_entropy, linear_cross_entropy
from ridgeline.runtime.train.layer import Experts, FeedForward, enter, leave, make_ffn, make_mixer, maybe_recompute
from ridgeline.runtime.train.layout import Axis, Layout, merge, split, sum_over
from ridgeline.runtime.train.offload import ActivationOffload
from ridgeline.runtime.train.weights import Maker, Matrix, NormModule, local


class PredictionDepth(nn.Module):  # type: ignore[misc]
    """One depth of multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2).

    layer    the transformer block
    again    parts of a layer that are computed again on the way back; with the whole of it what comes before it
    """

    def __init__(self, make: Maker, mtp: Mtp, hidden: int, again: frozenset[str]) -> None:
        super().__init__()
        self.layout, self.again = make.layout, "layer" in again
        self.embedding_norm = NormModule(make, mtp.block.norm, hidden)
        self.hidden_norm = NormModule(make, mtp.block.norm, hidden)
        self.projection = Matrix(make, hidden, 2 * hidden, "out")
        self.layer = Layer(make, mtp.block, hidden, again - {"layer"})
        self.norm = NormModule(make, mtp.block.norm, hidden)

    def forward(self, state: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The state of this depth, and what of it the head reads; `rows` are the further tokens' embeddings."""
        state = maybe_recompute(self._state, state, rows, again=self.again)
        return state, self.norm(state)

    def _state(self, state: Tensor, rows: Tensor) -> Tensor:
        layout = self.layout
        both_states = torch.cat((self.embedding_norm(rows), self.hidden_norm(state)), -1)
        projection = merge(self.projection(enter(both_states, layout)), layout.tp, -1)
        return self.layer(split(projection, layout.tp, 1) if layout.sequence_parallel else projection)


class Layer(nn.Module):  # type: ignore[misc]
    """One layer: mixer and feed-forward with a norm before each, behind each or both, added to the residual stream.

    again    what the backward computes again: layer (full recompute), mixer, ffn, attention (between its projections),
             activation
    """

    def __init__(self, make: Maker, block: Block, hidden: int, again: frozenset[str]) -> None:
        super().__init__()
        numerics, parts = make.constants.numerics, (block.mixer is not None) + (block.ffn is not None)
        self.again, self.scale, self.norms_after = again, numerics.residual_scale or 1.0, numerics.norms_after is True
        posts = [NormModule(make, block.norm, hidden) if block.norms == 2 * parts else None for _ in range(2)]
        self.mixer_post_norm, self.ffn_post_norm = posts
        if block.mixer is not None:
            self.mixer_norm = NormModule(make, block.norm, hidden)
            self.mixer = make_mixer(make, block.mixer, hidden, block.norm)
            self.mixer.again = "attention" in again
        if block.ffn is not None:
            self.ffn_norm = NormModule(make, block.norm, hidden)
            self.ffn = make_ffn(make, block.ffn, hidden)
            for part in self.ffn.modules():
                if isinstance(part, (FeedForward, Experts)):
                    part.again = "activation" in again
        self.has = block.mixer is not None, block.ffn is not None

    @property
    def has_rotary(self) -> bool:
        """Whether its mixer turns queries and keys by their place."""
        return self.has[0] and self.mixer.rotary is not None

    def forward(self, x: Tensor) -> Tensor:
        return maybe_recompute(self._layer, x, again="layer" in self.again)

    def _layer(self, x: Tensor) -> Tensor:
        if self.has[0]:
            x = self._add(x, maybe_recompute(self._mix, x, again="mixer" in self.again))
        if self.has[1]:
            x = self._add(x, maybe_recompute(self._feed_forward, x, again="ffn" in self.again))
        return x

    def attend_by(self, x: Tensor, mixer: Callable[[Tensor], Tensor]) -> Tensor:
        """The layer with another way to mix its tokens: those of a sampler, whose context is in a cache."""
        x = self._add(x, self._mix(x, mixer)) if self.has[0] else x
        return self._add(x, self._feed_forward(x)) if self.has[1] else x

    def _mix(self, x: Tensor, mixer: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        mix = mixer or self.mixer
        part = self.mixer_norm(mix(x)) if self.norms_after else mix(self.mixer_norm(x))
        return part if self.mixer_post_norm is None else self.mixer_post_norm(part)

    def _feed_forward(self, x: Tensor) -> Tensor:
        part = self.ffn_norm(self.ffn(x)) if self.norms_after else self.ffn(self.ffn_norm(x))
        return part if self.ffn_post_norm is None else self.ffn_post_norm(part)

    def _add(self, x: Tensor, part: Tensor) -> Tensor:
        return x + part if self.scale == 1 else x + part * self.scale


class EmbeddingModule(nn.Module):  # type: ignore[misc]
    """Token rows, and position rows where positions are learned."""

    def __init__(self, make: Maker, model: ModelSpec) -> None:
        super().__init__()
        self.layout, self.scale = make.layout, make.constants.numerics.embedding_scale or 1.0
        self.weight = make.weight(model.vocab, model.hidden, cut=0)
        learned_positions = model.embedding.positions
        self.positions = make.weight(learned_positions, model.hidden, cut=None) if learned_positions else None
        self.norm = NormModule(make, model.embedding.norm, model.hidden) if model.embedding.norm else None

    def forward(self, tokens: Tensor, places: Tensor | None = None) -> Tensor:
        """[batch, tokens] to [batch, tokens, hidden], dealt to tensor ranks where the sequence is split; `places` of
        tokens that do not follow each other."""
        layout = self.layout
        x = look_up(self.weight, tokens, layout)
        x = x if self.scale == 1 else x * self.scale
        if self.positions is not None:
            places = own_positions(layout, tokens.shape[1], tokens.device) if places is None else places
            x = x + functional.embedding(places, local(self.positions, partial=layout.sequence_parallel))
        return x if self.norm is None else self.norm(x)


def look_up(weight: nn.Parameter, tokens: Tensor, layout: Layout) -> Tensor:
    """Rows of tokens from a matrix whose rows tensor ranks share."""
    rows = local(weight)
    if layout.tp.group is None:
        return functional.embedding(tokens, rows)
    local_rows = tokens - layout.tp.index * rows.shape[0]
    here = (local_rows >= 0) & (local_rows < rows.shape[0])
    return leave(functional.embedding(local_rows * here, rows) * here.unsqueeze(-1).to(rows.dtype), layout)


def own_positions(layout: Layout, tokens: int, device: torch.device) -> Tensor:
    """Places in the sequence of this rank's part of the residual stream."""
    places = layout.places(tokens, device)
    return places.chunk(layout.tp.degree)[layout.tp.index] if layout.sequence_parallel else places


class HeadModule(nn.Module):  # type: ignore[misc]
    """The output matrix: logits of this rank's part of the vocabulary, or of as many outputs as it has."""

    def __init__(self, make: Maker, model: ModelSpec, outputs: int) -> None:
        super().__init__()
        self.layout, self.fuses = make.layout, make.fuses
        numerics = make.constants.numerics
        self.scale, self.softcap = numerics.logit_scale or 1.0, numerics.logit_softcap
        self.weight = make.weight(outputs, model.hidden, cut=0)
        self.bias = make.weight(outputs, cut=0) if model.embedding.head_bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, hidden] to [batch, tokens, vocabulary / tp]."""
        bias = None if self.bias is None else local(self.bias)
        logits = functional.linear(enter(self._scale_states(x), self.layout), local(self.weight), bias)
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap

    def _scale_states(self, x: Tensor) -> Tensor:
        return x if self.scale == 1 else x * self.scale

    def loss(self, x: Tensor, targets: Tensor, scale: float) -> Tensor:
        """`scale` times the summed loss of this rank's tokens; head and loss are one where the engine fuses them."""
        loss_kernels = {"cross-entropy", "linear-cross-entropy"} & self.fuses
        if loss_kernels and self.layout.tp.group is None and self.softcap is None:
            bias = None if self.bias is None else local(self.bias)
            in_chunks = "linear-cross-entropy" in self.fuses
            return linear_cross_entropy(
                self._scale_states(x), local(self.weight), bias, targets, scale, chunked=in_chunks
            )
        return cross_entropy(self(x), targets, self.layout, scale)


def _without_gaps(x: Tensor) -> Tensor:
    """What one stage sends another, and its gradient on the way back: sends take tensors without gaps alone."""
    if x.requires_grad:
        x.register_hook(Tensor.contiguous)
    return x.contiguous()


class Stage(nn.Module):  # type: ignore[misc]
    """Layers first to last of a model, with the embedding before the first and the head behind the last one.

    offload          where saved activations go; None: they stay
    mtp              depths of multi-token prediction, where the head is
    embedding_copy   the embedding that they read, where neither it nor a head tied to it is in this stage
    """

    offload: ActivationOffload | None = None

    def __init__(self, make: Maker, model: ModelSpec, layers: Sequence[tuple[int, frozenset[str]]],
                 ends: tuple[bool, bool], ahead: frozenset[str], *, outputs: int) -> None:  # fmt: skip
        super().__init__()
        first, last = ends
        self.embedding = EmbeddingModule(make, model) if first else None
        layers_by_name = {
            str(index): Layer(make, model.layer(index), model.hidden, recompute) for index, recompute in layers
        }
        self.layers, self.layout = nn.ModuleDict(layers_by_name), make.layout
        self.rotaries = [layer.mixer.rotary for layer in layers_by_name.values() if layer.has_rotary]
        self.norm = NormModule(make, model.norm, model.hidden) if last and model.norm else None
        self.head = HeadModule(make, model, outputs) if last else None
        if first and last and model.embedding.tied:
            assert self.head is not None
            assert self.embedding is not None
            self.head.weight = self.embedding.weight
        mtp = model.mtp if last else None
        depths = [PredictionDepth(make, mtp, model.hidden, ahead) for _ in range(mtp.depth)] if mtp else []
        self.mtp = nn.ModuleList(depths)
        self.rotaries += [predictor.layer.mixer.rotary for predictor in self.mtp if predictor.layer.has_rotary]
        self.mtp_weight = make.constants.mtp_weight / max(1, len(self.mtp))
        needs_embedding = mtp is not None and not first and not model.embedding.tied
        self.embedding_copy = make.weight(model.vocab, model.hidden, cut=0) if needs_embedding else None

    def forward(
        self, x: Tensor, targets: Tensor | None = None, scale: float = 1.0, further: Tensor | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        """Tokens or the residual stream in; the residual stream or logits out, or the scaled loss against targets.

        With multi-token prediction targets are [batch, 1 + depth, tokens]. A pipeline, whose loss is computed outside,
        names them `further` and gets a tuple of logits: the model's, and those of every depth.
        """
        x = _without_gaps(x) if self.embedding is None else self.embedding(x)
        x = self._layers(x)
        if self.norm is not None:
            x = self.norm(x)
        if self.head is None:
            return _without_gaps(x)
        if not self.mtp or (targets is None and further is None):
            return self.head(x) if targets is None else self.head.loss(x, targets, scale)
        if targets is None:
            assert further is not None
            return (self.head(x), *(self.head(ahead) for ahead in self._ahead(x, further)))
        loss = self.head.loss(x, targets[:, 0], scale)
        for depth, ahead in enumerate(self._ahead(x, targets), 1):
            loss = loss + self.head.loss(ahead, targets[:, depth], scale * self.mtp_weight)
        return loss

    def _ahead(self, x: Tensor, further: Tensor) -> Iterator[Tensor]:
        """What the head reads of every depth: depth k is told the token k further and is to say the next one."""
        if self.embedding is not None:
            weight = self.embedding.weight
        else:
            assert self.head is not None
            weight = self.head.weight if self.embedding_copy is None else self.embedding_copy
        for depth, prediction in enumerate(self.mtp):
            x, ahead = prediction(x, look_up(weight, further[:, depth], self.layout))
            yield ahead

    def _layers(self, x: Tensor) -> Tensor:
        layers, shelf = list(self.layers.values()), None
        for rotary in self.rotaries:  # before a compiler sees the layers
            rotary.angles(x.shape[1] * (self.layout.tp.degree if self.layout.sequence_parallel else 1), x.device)
        for layer in layers:
            if self.offload is None or layer is layers[-1] or not torch.is_grad_enabled():
                x = layer(x)
                continue
            with self.offload.saving(layer, shelf) as shelf:
                x = layer(x)
        return x


class _ParallelCrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    """Sum over tokens of log sum exp(logits) - logit of the target, for logits split over tensor ranks."""

    @staticmethod
    def forward(ctx: FunctionCtx, logits: Tensor, targets: Tensor, axis: Axis) -> Tensor:
        wide = logits.float()
        top = wide.amax(-1, keepdim=True)
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=axis.group)
        weights = (wide - top).exp()
        total = sum_over(weights.sum(-1, keepdim=True), axis)
        local_targets = targets - axis.index * wide.shape[-1]
        here = (local_targets >= 0) & (local_targets < wide.shape[-1])
        target_logits = wide.gather(-1, (local_targets * here).unsqueeze(-1)).squeeze(-1) * here
        ctx.save_for_backward((weights / total).to(logits.dtype), local_targets, here)
        return (total.log().squeeze(-1) + top.squeeze(-1) - sum_over(target_logits, axis)).sum()

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None]:
        softmax, local_targets, here = ctx.saved_tensors
        d_logits = softmax.float()
        d_logits.scatter_add_(-1, (local_targets * here).unsqueeze(-1), -here.unsqueeze(-1).float())
        return (d_logits * gradient).to(softmax.dtype), None, None


def cross_entropy(
    logits: Tensor, targets: Tensor, layout: Layout, scale: float = 1.0, *, fused: bool = False
) -> Tensor:
    """`scale` times the sum over this rank's tokens, in 32 bits."""
    logits, targets = logits.flatten(0, 1), targets.flatten()
    if layout.tp.group is not None:
        return _ParallelCrossEntropy.apply(logits, targets, layout.tp) * scale
    if fused:
        return fused_cross_entropy(logits, targets, scale)
    return functional.cross_entropy(logits.float(), targets, reduction="sum") * scale
