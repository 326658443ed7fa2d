"""Turn a ModelSpec into its exact number of parameters, part by part.

A parameter is a trained tensor element: buffers that training only adjusts (a router's balancing bias) are not counted.
`ParamCount.total` leaves out multi-token prediction, as model cards and transformers do when they count the main model;
`total_with_mtp` has everything.
"""

from __future__ import annotations

from dataclasses import astuple, fields

from ridgeline.core.records import dataclass
from ridgeline.models.mixer_parts import mixer_parts
from ridgeline.models.parts import Weight, ffn_parts
from ridgeline.models.spec import Audio, Block, Encoder, Ffn, Mlp, ModelSpec, Moe, Mtp, Norm, Vision


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamCount:
    """Parameters of a model by part; each tensor is in exactly one part.

    embedding       token and position rows, their projection and norm
    attention       every sequence mixer, its inner norms included: softmax, latent, state space, delta rule
    mlp             dense feed-forward
    experts         routed experts, all of them
    visited         the part of `experts` that one token passes through; not a further part of the sum
    shared_experts  experts that every token visits
    router          what stands around the experts: scores, gate of the shared part, projections to a latent width
    norms           norms of the hidden width, the final one included
    head            output matrix and bias; 0 when it is the embedding
    vision          image encoder and projector
    audio           audio encoder and projector
    companions      networks of the same file that take no part: an omni model's talker and vocoder
    encoder         the stack that cross attention reads; its layers, and what stands around them
    mtp             multi-token prediction
    extra           vectors that no other part describes, and what was captured beside the parts
    """

    embedding: int = 0
    attention: int = 0
    mlp: int = 0
    experts: int = 0
    visited: int = 0
    shared_experts: int = 0
    router: int = 0
    norms: int = 0
    head: int = 0
    vision: int = 0
    audio: int = 0
    companions: int = 0
    encoder: int = 0
    mtp: int = 0
    extra: int = 0

    @property
    def total_with_mtp(self) -> int:
        """All parts."""
        parts: tuple[int, ...] = astuple(self)
        return sum(parts) - self.visited

    @property
    def total(self) -> int:
        """All parts except multi-token prediction."""
        return self.total_with_mtp - self.mtp

    @property
    def active(self) -> int:
        """The part of `total` that takes part in one token: routed experts it does not visit are left out.

            total - experts + visited - companions

        Embedding and head count once each, as in `total`; encoders of images and sound and their projectors are
        included, what speaks an answer aloud is not.
        """
        return self.total - self.experts + self.visited - self.companions

    def __add__(self, other: ParamCount) -> ParamCount:
        names = [field.name for field in fields(self)]
        return ParamCount(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def times(self, count: int) -> ParamCount:
        """Every part that many times."""
        return ParamCount(**{field.name: getattr(self, field.name) * count for field in fields(self)})


def count(spec: ModelSpec) -> ParamCount:
    """Parameters of the whole model.

        embedding + sum over layers of (mixer + ffn + norms + extra) + final norm + head + vision + audio

    >>> from ridgeline.models.spec import Attention, Embedding
    >>> block = Block(mixer=Attention(heads=32, kv_heads=8, head_dim=128), ffn=Mlp(hidden=14336))
    >>> llama3_8b = ModelSpec(id="llama3-8b", name="Llama 3 8B", hidden=4096, vocab=128256,
    ...                       embedding=Embedding(), blocks=(block,), order=(0,) * 32)
    >>> count(llama3_8b).total
    8030261248
    """
    parts = ParamCount(
        embedding=_embedding_params(spec),
        head=_head_params(spec),
        norms=spec.norm.params(spec.hidden) if spec.norm else 0,
        vision=tower_params(spec.vision) if spec.vision else 0,
        audio=tower_params(spec.audio) if spec.audio else 0,
        companions=sum(companion.params for companion in spec.companions),
        encoder=tower_params(spec.encoder) if spec.encoder else 0,
        mtp=mtp_params(spec.mtp, spec.hidden) if spec.mtp else 0,
    )
    for block, layers in spec.counts():
        parts = parts + block_parts(block, spec.hidden).times(layers)
    return parts


def block_params(block: Block, hidden: int) -> int:
    """Parameters of one layer, all experts included: mixer + ffn + norms + extra."""
    return block_parts(block, hidden).total


def block_parts(block: Block, hidden: int) -> ParamCount:
    """Parameters of one layer by part."""
    streams = block.streams
    parts = ParamCount(
        attention=streams * sum(mixer_parts(mixer, hidden).params for mixer in block.mixers)
        + (mixer_parts(block.cross, hidden).params if block.cross else 0),
        norms=streams * block.norms * block.norm.params(hidden),
        extra=streams * modulation_params(block, hidden)
        + block.extra
        + (block.captured.params if block.captured else 0),
    )
    if block.ffn is None:
        return parts
    if isinstance(block.ffn, Mlp):
        return parts + ParamCount(mlp=streams * ffn_params(block.ffn, hidden))
    return parts + moe_params(block.ffn, hidden)


def modulation_params(block: Block, hidden: int) -> int:
    """Parameters of what makes a layer's modulation: m * (w * h + h); m = vectors, w = width of what makes them."""
    return block.modulation * (modulation_inputs(block, hidden) * hidden + hidden)


def modulation_inputs(block: Block, hidden: int) -> int:
    """Width of what a layer's modulation is made of: hidden unless the block says otherwise."""
    return hidden if block.modulation_width is None else block.modulation_width


def ffn_params(ffn: Ffn, hidden: int) -> int:
    """Parameters of one feed-forward part, all experts included.

    >>> ffn_params(Mlp(hidden=14336), 4096)
    176160768
    """
    return _elements(ffn_parts(ffn, hidden).weights)


def moe_params(moe: Moe, hidden: int) -> ParamCount:
    """Parameters of one mixture of experts.

    >>> mixtral = moe_params(Moe(experts=8, topk=2, hidden=14336), 4096)
    >>> mixtral.experts, mixtral.visited, mixtral.router
    (1409286144, 352321536, 32768)
    """
    parts = ffn_parts(moe, hidden)
    experts = _elements((*parts.experts, *parts.expert_biases))
    return ParamCount(
        experts=experts,
        visited=moe.topk * (experts // moe.experts),
        shared_experts=parts.dense.params if parts.dense else 0,
        router=_elements((*parts.router, *parts.router_bias)),
    )


def _elements(weights: tuple[Weight, ...]) -> int:
    return sum(weight.elements for weight in weights)


def tower_params(tower: Vision | Audio | Encoder) -> int:
    """Parameters of an encoder and its projector, if any: layers * block + what stands around them."""
    projector = 0 if isinstance(tower, Encoder) else tower.projector_params
    return tower.layers * block_params(tower.block, tower.hidden) + projector + tower.other_params


def mtp_params(mtp: Mtp, hidden: int) -> int:
    """Parameters of multi-token prediction: depth * (block + 2*h*h + three norms). Embedding and head are the model's.

    >>> mtp_params(Mtp(depth=1, block=Block(mixer=None, ffn=Mlp(hidden=4), norms=1)), 2)
    40
    """
    return mtp.depth * (block_params(mtp.block, hidden) + 2 * hidden * hidden + 3 * mtp.block.norm.params(hidden))


def _embedding_params(spec: ModelSpec) -> int:
    """vocab * w + positions * h + (w * h when w is not h) + norm + further rows and weights; w = width of a row,
    h = hidden. What embeds latents, text and timestep instead where it has no words."""
    embedding = spec.embedding
    if spec.latent_space is not None:
        return spec.latent_space.other_params
    rows = spec.vocab * (embedding.width or spec.hidden) + embedding.positions * spec.hidden
    norm: Norm | None = embedding.norm
    further = embedding.further_rows + embedding.further_weights
    return rows + embedding.width * spec.hidden + (norm.params(spec.hidden) if norm else 0) + further


def _head_params(spec: ModelSpec) -> int:
    """(vocab * w unless tied) + (h * w when w is not h) + bias; w = width of a row, h = hidden.

    Another head: h * outputs + its dense layers, biases and norms; before logits, these beside them.
    """
    embedding, head = spec.embedding, spec.head
    dense = head.dense + head.extra if head else 0
    if head is not None and not spec.speaks:
        return spec.hidden * head.outputs + dense
    matrix = 0 if embedding.tied else spec.vocab * (embedding.width or spec.hidden)
    return matrix + spec.hidden * embedding.width + spec.vocab * embedding.head_bias + dense
