"""What a model is, as frozen values: embeddings, a pattern of blocks, a head. Nothing of a run is in here.

    ModelSpec
    |-- Embedding                    token rows, learned positions, tied head or not
    |-- blocks[order[i]]             layer i; equal layers share one Block, so cost grows with distinct blocks
    |   |-- mixer                    Attention | LatentAttention | Mamba2 | GatedDeltaNet | None
    |   |-- cross                    Attention that reads the encoder's output | None
    |   |-- ffn                      Mlp | Moe | None
    |   `-- captured                 what one recorded forward did beside these, op by op
    |-- Head                         what stands behind the last layer, where it is no language model's
    |-- LatentSpace                  latents of images and video, where they stand in the place of words
    |-- Mtp                          extra blocks that predict further tokens
    |-- Encoder                      a stack whose output cross attention reads: of tokens, of sound
    `-- Vision                       image encoder and projector

Sizes are plain counts. Adding a mixer or an ffn to the unions makes the type checker list every place to change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from ridgeline.core.errors import Problem
from ridgeline.core.table import AtLeast, Count, Size

Positions = Literal["rope", "learned", "alibi", "relative", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """A normalisation over one vector. `bias` adds a second vector; `weight` is False for parameter-free norms."""

    kind: Literal["rms", "layer"] = "rms"
    bias: bool = False
    weight: bool = True

    def params(self, width: int) -> int:
        """Parameters of this norm over a vector of `width`."""
        return width * (int(self.weight) + int(self.bias))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Softmax attention with grouped keys: kv_heads = heads is MHA, 1 is MQA, between is GQA.

    window    tokens a query sees; 0 is all of them
    chunked   the window is a fixed block of the sequence rather than a sliding one
    qk_norm   norm of queries and keys: none, one vector per head size, one over all heads together
    gate      a sigmoid gate as wide as the queries multiplies the output
    sinks     one learned logit per head joins the softmax
    keys_as_values  values come from the key projection, so there is no third one
    causal    a query sees what comes before it; False: all of its sequence, as in an encoder
    key_bias  keys have a bias where `qkv_bias` says so; False: queries and values alone
    """

    kind: Literal["attention"] = "attention"
    heads: Count
    kv_heads: Count
    head_dim: Count
    v_head_dim: Size = 0  # 0: as head_dim
    window: Size = 0
    chunked: bool = False
    positions: Positions = "rope"
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"
    gate: bool = False
    sinks: bool = False
    keys_as_values: bool = False
    causal: bool = True
    key_bias: bool = True

    @property
    def value_dim(self) -> int:
        """Width of one value head."""
        return self.v_head_dim or self.head_dim

    def problems(self) -> Iterable[Problem]:
        if self.heads % self.kv_heads:
            yield Problem(
                path="kv_heads",
                given=str(self.kv_heads),
                expected=f"a divisor of heads ({self.heads})",
                todo="give kv_heads = heads for plain multi-head attention",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """A light scorer that picks which `topk` tokens sparse attention looks at.

    shared    the choice of an earlier layer is used again, so this layer holds no scorer of its own
    """

    heads: Count
    head_dim: Count
    topk: Count
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (MLA): keys and values come from one small latent per token.

    q_rank    width of the query latent; 0 projects queries directly
    kv_rank   width of the key-value latent, which is what the cache holds together with rope_dim
    """

    kind: Literal["mla"] = "mla"
    heads: Count
    q_rank: Size
    kv_rank: Count
    nope_dim: Count
    rope_dim: Count
    v_dim: Count
    bias: bool = False
    indexer: Indexer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """State-space mixer (SSD): inner width heads * head_dim, one state of head_dim x state per head."""

    kind: Literal["mamba2"] = "mamba2"
    heads: Count
    head_dim: Count
    state: Count
    groups: Count = 1
    conv: Count = 4
    conv_bias: bool = True
    proj_bias: bool = False

    @property
    def inner(self) -> int:
        """Width of the expanded stream."""
        return self.heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNet:
    """Linear attention with the gated delta rule: one key_dim x value_dim state per value head."""

    kind: Literal["gated-delta"] = "gated-delta"
    key_heads: Count
    value_heads: Count
    key_dim: Count
    value_dim: Count
    conv: Count = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """Dense feed-forward; gated has three matrices (up, gate, down), otherwise two."""

    kind: Literal["mlp"] = "mlp"
    hidden: Count
    gated: bool = True
    activation: str = "silu"
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """Mixture of experts.

    hidden         width inside one routed expert
    shared_hidden  total width of the experts every token visits; 0 for none
    shared_gate    a sigmoid gate of one output weighs the shared part
    groups         expert groups; routing first picks `group_topk` of them
    latent         width at which routed experts read and write; 0: the model's hidden
    """

    kind: Literal["moe"] = "moe"
    experts: Count
    topk: Count
    hidden: Count
    shared_hidden: Size = 0
    shared_gate: bool = False
    gated: bool = True
    activation: str = "silu"
    bias: bool = False
    router_bias: bool = False
    groups: Count = 1
    group_topk: Count = 1
    latent: Size = 0

    def problems(self) -> Iterable[Problem]:
        if self.topk > self.experts:
            yield Problem(path="topk", given=str(self.topk), expected=f"at most experts ({self.experts})")
        if self.experts % self.groups:
            yield Problem(path="groups", given=str(self.groups), expected=f"a divisor of experts ({self.experts})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A matrix product that a recorded forward ran: `rows` a token, each of `inputs` to `outputs` numbers.

    groups    such products side by side, each with a matrix of its own
    weights   one factor is a parameter; False: both are made of tokens
    """

    label: str
    inputs: Count
    outputs: Count
    rows: Annotated[float, AtLeast(0)] = 1.0
    groups: Count = 1
    weights: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """What a recorded forward of a layer did that no other part describes (`ridgeline.runtime.capture`).

    products     matrix products, those between activations included
    scores       softmax attention apart from its projections: heads, their sizes, window
    pair_flops   flops for each pair of a token and one that it sees, beside the scores
    scan_flops   flops a token of recurrences that ran token by token
    streams      elements a token that pointwise ops and reductions write, in `kernels` ops
    params       parameters, those of the products included
    saved        elements a token that the backward reads again
    cached       elements a token leaves in a cache
    mixes        tokens see each other in it: no tensor and context ranks split it
    """

    products: tuple[Product, ...] = ()
    scores: tuple[Attention, ...] = ()
    pair_flops: Annotated[float, AtLeast(0)] = 0.0
    scan_flops: Annotated[float, AtLeast(0)] = 0.0
    streams: Annotated[float, AtLeast(0)] = 0.0
    kernels: Annotated[float, AtLeast(0)] = 0.0
    params: Size = 0
    saved: Annotated[float, AtLeast(0)] = 0.0
    cached: Size = 0
    mixes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRecord:
    """That a description was recorded rather than read: by what, over how many tokens, and what could not be told."""

    by: str
    tokens: tuple[int, ...] = ()
    untold: tuple[str, ...] = ()


Mixer = Attention | LatentAttention | Mamba2 | GatedDeltaNet
Ffn = Mlp | Moe


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One layer: a sequence mixer, a feed-forward part, or both.

    norms     how many norms of the hidden width it holds (2 for pre-norm, 4 with norms after each part too)
    parallel  mixer and feed-forward read the same input and are added together
    cross     attention between the two parts, whose keys and values are made of the encoder's output
    extra     parameters that no part above describes (layer scales and such)
    captured  what a recorded forward did beside mixer and ffn, or instead of them
    streams   kinds of tokens with weights of their own that see each other (MMDiT: latents and text); a token passes
              through one of them
    modulation  vectors of the hidden width that scale, shift and gate its parts, made of the timestep once a sequence
    """

    mixer: Mixer | None
    ffn: Ffn | None
    norm: Norm = Norm()
    norms: Size = 2
    parallel: bool = False
    extra: Size = 0
    cross: Attention | None = None
    captured: Captured | None = None
    streams: Count = 1
    modulation: Size = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """Rows of token vectors and what belongs to them.

    tied       the output head is the same matrix
    positions  learned position rows; 0 for none
    width      width of a row when it differs from hidden (a projection joins them); 0: hidden
    norm       a norm directly after the embedding
    """

    tied: bool = False
    positions: Size = 0
    width: Size = 0
    norm: Norm | None = None
    head_bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What stands behind the last layer where that is not a language model's output matrix; `architectures` decides.

    kind      sequence: scores of a whole sequence, read off one of its tokens (classification, reward, reranking)
              tokens: scores of every token      none: hidden states are the answer (embedding)
              language: logits of the vocabulary behind a dense layer of their own (masked language models)
    outputs   scores; the vocabulary's logits are not among them
    dense     weights of dense layers before the scores: a pooler, a transform
    extra     biases and norms of all of these
    """

    kind: Literal["sequence", "tokens", "none", "language"]
    outputs: Size = 0
    dense: Size = 0
    extra: Size = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """A stack of layers that reads a source once; cross attention of the model's own layers reads what comes of it.

    reads         tokens, by the model's own embedding; or audio, through convolutions
    context       positions it was made for; of audio, those of one window
    front         multiply-adds of one position in the convolutions before its layers
    per_second    positions of one second of audio
    other_params  what stands around its layers: convolutions, positions, norms
    """

    reads: Literal["tokens", "audio"] = "tokens"
    hidden: Count
    block: Block
    layers: Count
    context: Size = 0
    front: Size = 0
    per_second: Size = 0
    other_params: Size = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSpace:
    """What a diffusion transformer reads and writes: latents of an autoencoder, cut into patches; a patch is a token.

    inputs    numbers of one patch
    pixels    pixels a side that one token stands for: the autoencoder's scale times the patch
    frames    video frames that one latent frame stands for, the first frame apart; 1: images
    text      tokens of text that it reads
    joint     text stands in the sequence beside the latents; False: cross attention reads it
    per_text  multiply-adds of one text token before the layers
    per_step  multiply-adds of the timestep and what is pooled, once a sequence
    other_params  what stands before the layers: embeddings of patches, text and timestep
    """

    inputs: Count
    pixels: Count
    frames: Count = 1
    text: Size = 0
    joint: bool = True
    per_text: Size = 0
    per_step: Size = 0
    other_params: Size = 0

    def tokens(self, height: int, width: int, frames: int = 1) -> int:
        """Tokens of an image or a video, text not counted: latent frames * (height / p) * (width / p).

        Latent frames are 1 + (frames - 1) / f; p = pixels, f = frames of one latent frame. Sides are rounded down.

        >>> wan = LatentSpace(inputs=64, pixels=16, frames=4)
        >>> wan.tokens(1024, 1024), wan.tokens(480, 832, 81)
        (4096, 32760)
        """
        many = 1 + (frames - 1) // self.frames
        return max(1, many * (height // self.pixels) * (width // self.pixels))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mtp:
    """Multi-token prediction: `depth` extra blocks, each with a 2*hidden -> hidden projection and three norms:
    of the next token's embedding, of the hidden state, of the block's output.
    """

    depth: Count
    block: Block


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision:
    """An image encoder and the projector into the language model, both in parameters and tokens.

    tokens            image tokens that reach the language model for one image of the default size
    windowed          layers whose attention stays inside the mixer's window; the others see the whole image
    projector_params  parameters between encoder and language model
    other_params      patch embedding, class token, positions, outer norms
    """

    hidden: Count
    block: Block
    layers: Count
    patch: Count
    image: Count
    tokens: Count
    windowed: Size = 0
    projector_params: Size = 0
    other_params: Size = 0

    @property
    def patches(self) -> int:
        """Patches of one image."""
        return (self.image // self.patch) ** 2

    def sized(self, height: int, width: int) -> Vision:
        """The same for images of other sizes: as many patches as they have, in a square, and tokens in proportion.

        >>> block = Block(mixer=None, ffn=None)
        >>> Vision(hidden=8, block=block, layers=1, patch=14, image=448, tokens=256).sized(896, 448).tokens
        529
        """
        side = max(1, round((height * width) ** 0.5 / self.patch))
        return replace(self, image=side * self.patch, tokens=max(1, self.tokens * side**2 // max(1, self.patches)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """An architecture. `blocks` are the distinct layers and `order` names one of them for each layer."""

    id: str
    name: str
    hidden: int
    vocab: int
    embedding: Embedding
    blocks: tuple[Block, ...]
    order: tuple[int, ...]
    norm: Norm | None = Norm()
    context: int = 0  # longest sequence it was made for; 0: not stated
    mtp: Mtp | None = None
    vision: Vision | None = None
    source: str = ""
    capture: CaptureRecord | None = None  # None: read from a config or a table
    head: Head | None = None
    encoder: Encoder | None = None
    latent_space: LatentSpace | None = None

    @property
    def outputs(self) -> int:
        """Scores of one token or sequence: the vocabulary, unless another head stands behind the last layer."""
        return self.vocab if self.speaks or self.head is None else self.head.outputs

    @property
    def speaks(self) -> bool:
        """Whether its head has logits of the vocabulary."""
        return self.head is None or self.head.kind == "language"

    @property
    def writes(self) -> bool:
        """Whether it makes text token by token: logits of the vocabulary behind layers that see what came before."""
        return self.speaks and self.causal

    @property
    def causal(self) -> bool:
        """Whether its layers see what comes before a token and nothing behind it."""
        mixers = [block.mixer for block in self.blocks]
        return not any(isinstance(mixer, Attention) and not mixer.causal for mixer in mixers)

    @property
    def layers(self) -> int:
        """Number of layers, multi-token prediction not counted."""
        return len(self.order)

    def counts(self) -> tuple[tuple[Block, int], ...]:
        """Each distinct block with how many layers it stands for."""
        times = Counter(self.order)
        return tuple((block, times[index]) for index, block in enumerate(self.blocks))

    def layer(self, index: int) -> Block:
        """The block at one layer."""
        return self.blocks[self.order[index]]


def from_layers(layers: Iterable[Block]) -> tuple[tuple[Block, ...], tuple[int, ...]]:
    """Distinct blocks and the order that spells the given layers."""
    seen: dict[Block, int] = {}
    order = tuple(seen.setdefault(block, len(seen)) for block in layers)
    return tuple(seen), order
