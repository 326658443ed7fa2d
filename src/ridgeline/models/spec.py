"""What a model is, as frozen values: embeddings, a pattern of blocks, a head. Nothing of a run is in here.

    ModelSpec
    |-- Embedding                    token rows, learned positions, tied head or not
    |-- blocks[order[i]]             layer i; equal layers share one Block, so cost grows with distinct blocks
    |   |-- mixer, beside            Attention | LatentAttention | CompressedAttention |
    |   |                            Mamba2 | GatedDeltaNet | Recurrence | None
    |   |-- cross                    Attention that reads the encoder's output | None
    |   |-- ffn                      Mlp | Moe | None
    |   `-- captured                 what one recorded forward did beside these, op by op
    |-- Head                         what stands behind the last layer, where it is no language model's
    |-- LatentSpace                  latents of images and video, where they stand in the place of words
    |-- Mtp                          extra blocks that predict further tokens
    |-- Encoder                      a stack whose output cross attention reads: of tokens, of sound
    |-- Vision                       image encoder and projector: images and video become tokens of the sequence
    |-- Audio                        audio encoder and projector: sound becomes tokens of the sequence
    `-- Companion                    another network of the same file that takes no part: what speaks the answer aloud

Sizes are plain counts. A new kind of mixer or ffn is a value of `blocks` and its entry in `mixer_parts` or `parts`,
which say what it consists of: parameters, flops, caches, degrees, placements and ops follow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import field
from typing import Literal

from ridgeline.core.records import dataclass
from ridgeline.core.table import Count, Size
from ridgeline.models.blocks import (
    Attention,
    Block,
    Captured,
    CaptureRecord,
    CompressedAttention,
    Ffn,
    GatedDeltaNet,
    Indexer,
    LatentAttention,
    Mamba2,
    Mixer,
    Mlp,
    Moe,
    Norm,
    Positions,
    Product,
    Recurrence,
    RecurrentForm,
)
from ridgeline.models.sizing import Clip, Sizing


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryScaling:
    """How rotary positions are scaled beyond the context they were first trained on (rope_scaling).

    first_context  tokens of that context; of `dynamic`, the longest sequence that is not scaled
    fast, slow     of YaRN: rotations beyond which a frequency stays as it is, and below which it is scaled (beta);
                   of Llama 3: the factors of the high and low frequencies
    truncate       YaRN rounds the range between them to whole dims
    mscale, mscale_all   of YaRN in latent attention: how scores are scaled with it
    attention_factor     what sines and cosines are multiplied with, where the file says it
    short_factors, long_factors   of LongRoPE: a divisor of each frequency, up to the first context and beyond it
    """

    kind: Literal["llama3", "yarn", "linear", "dynamic", "longrope", "proportional"]
    factor: float
    first_context: int
    fast: float | None = None
    slow: float | None = None
    truncate: bool = True
    mscale: float | None = None
    mscale_all: float | None = None
    attention_factor: float | None = None
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """How experts are scored and picked.

    bias        a learned bias picks experts, in place of an auxiliary loss
    scale       what the weights of the picked experts are multiplied with
    normalized  these weights are made to add up to one (norm_topk_prob)
    aux_loss    weight of the loss that balances experts (router_aux_loss_coef)
    """

    score: Literal["softmax", "sigmoid"]
    bias: bool = False
    scale: float = 1.0
    normalized: bool | None = None
    aux_loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """What a model multiplies and adds that changes no step's cost; None where it is not known or there is none.

    family              model_type of the config.json that they were read from; empty: the catalog's
    rotary_base         of rotary angles (rope_theta); local_rotary_base: of layers with a window, where it is another
    rotary_share        part of a head that is rotated (partial_rotary_factor)
    rotary_interleaved  rotated pairs are neighbours, not halves of a head; None: in latent attention alone
    norm_eps            added to a variance before its root
    norm_offset         added to every weight of a norm (Gemma: 1)
    norms_after         norms stand behind mixer and feed-forward, not before them (OLMo 2)
    score_softcap, logit_softcap   where a tanh caps scores of attention, and logits
    score_scale         what scores are divided by the root of, where it is not the size of a head
    score_multiplier    what scores are multiplied with, in place of that root (attention_multiplier)
    embedding_scale, residual_scale, logit_scale   of rows of tokens, of what each part adds, of logits
    router              of experts
    unread              keys that multiply something and that no reader understands
    """

    models: tuple[str, ...] = ()
    family: str = ""
    rotary_base: float | None = None
    local_rotary_base: float | None = None
    rotary_scaling: RotaryScaling | None = None
    rotary_share: float | None = None
    rotary_interleaved: bool | None = None
    norm_eps: float | None = None
    norm_offset: float | None = None
    norms_after: bool | None = None
    score_softcap: float | None = None
    logit_softcap: float | None = None
    score_scale: float | None = None
    score_multiplier: float | None = None
    embedding_scale: float | None = None
    residual_scale: float | None = None
    logit_scale: float | None = None
    router: Router | None = None
    unread: tuple[str, ...] = ()


__all__ = [
    "Attention",
    "Audio",
    "Block",
    "CaptureRecord",
    "Captured",
    "Companion",
    "CompressedAttention",
    "Embedding",
    "Encoder",
    "Ffn",
    "GatedDeltaNet",
    "Head",
    "Indexer",
    "LatentAttention",
    "LatentSpace",
    "Mamba2",
    "Mixer",
    "Mlp",
    "ModelSpec",
    "Moe",
    "Mtp",
    "Norm",
    "Positions",
    "Product",
    "Recurrence",
    "RecurrentForm",
    "Vision",
    "from_layers",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """Rows of token vectors and what belongs to them.

    tied       the output head is the same matrix
    positions  learned position rows; 0 for none
    width      width of a row when it differs from hidden (a projection joins them); 0: hidden
    norm       a norm directly after the embedding
    softcap    logits are squashed by a tanh before the loss or the sampling
    further_rows     parameters that tokens look up beside their rows (per-layer embeddings of Gemma 3n)
    further_weights  elements of further matrices that a token passes through once, before or behind the layers
    """

    tied: bool = False
    positions: Size = 0
    width: Size = 0
    norm: Norm | None = None
    head_bias: bool = False
    softcap: bool = False
    further_rows: Size = 0
    further_weights: Size = 0


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

    image             pixels a side of an image of its own size
    tokens            image tokens that reach the language model for one view of that size
    windowed          layers whose attention stays inside the mixer's window; the others see the whole image
    inputs            numbers of one patch; 0: three colours
    projector_params  parameters between encoder and language model
    other_params      patch embedding, class token, positions, outer norms
    sizing            how images are cut; `ridgeline.models.media_tokens`
    video             how frames of a video are; absent: as images
    """

    hidden: Count
    block: Block
    layers: Count
    patch: Count
    image: Count
    tokens: Count
    windowed: Size = 0
    inputs: Size = 0
    projector_params: Size = 0
    other_params: Size = 0
    sizing: Sizing = Sizing()
    video: Sizing | None = None

    @property
    def patches(self) -> int:
        """Patches of one image of its own size."""
        return max(1, self.image // self.patch) ** 2

    @property
    def patch_inputs(self) -> int:
        """Numbers that one patch is embedded from: all colours, and frames of one patch."""
        return self.inputs or 3 * self.patch**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Audio:
    """An audio encoder and the projector into the language model.

    front             multiply-adds of one position in the convolutions before its layers
    projector_params  parameters between encoder and language model, each of which a projected token passes
    other_params      convolutions, positions, outer norms
    clip              how sound is cut; `ridgeline.models.media_tokens`
    """

    hidden: Count
    block: Block
    layers: Count
    front: Size = 0
    projector_params: Size = 0
    other_params: Size = 0
    clip: Clip = Clip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """A further network in a model's file that runs beside it and not in it: counted, never priced.

    An omni model's talker turns hidden states into codes of speech, its vocoder codes into sound.
    """

    name: str
    params: Size


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
    audio: Audio | None = None
    companions: tuple[Companion, ...] = ()
    source: str = ""
    capture: CaptureRecord | None = None  # None: read from a config or a table
    head: Head | None = None
    encoder: Encoder | None = None
    latent_space: LatentSpace | None = None
    numerics: Numerics | None = field(default=None, compare=False)  # of its config.json; they cost no step anything

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
    places: dict[Block, int] = {}
    order = tuple(places.setdefault(block, len(places)) for block in layers)
    return tuple(places), order
