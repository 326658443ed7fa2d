"""Turn a ModelSpec into the flops of one token, part by part: forward, and of a training step.

Closed forms. Two flops are one multiply-add; an element of a weight matrix is one multiply-add a token. Recurrences are
counted token by token, as published MFU does: what a chunked kernel does more is priced, not counted here. Not counted:
the embedding lookup, norms, activations, softmax, rotations, biases. Encoders of images, sound and sources, and what
stands before the layers of a diffusion transformer, are counted at the end of this file.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import lru_cache

from ridgeline.core.records import dataclass
from ridgeline.models.ffn_parts import ffn_parts
from ridgeline.models.media_tokens import image_input
from ridgeline.models.mixer_parts import mixer_parts
from ridgeline.models.params import modulation_inputs
from ridgeline.models.parts import MixerParts
from ridgeline.models.sizing import EncoderInput
from ridgeline.models.spec import Attention, Block, Captured, Ffn, ModelSpec, Moe


def mean_visible(
    context: int, window: int = 0, chunked: bool = False, causal: bool = True, queries: int | None = None
) -> float:
    """Tokens a query sees, averaged over a sequence, or over its last `queries` tokens.

        all, causal        s/2                       full  s
        sliding, causal    w - w*w/(2*s)             full  w               where w < s, else as above
        chunked, causal    (q*w*w + r*r) / (2*s)     full  twice that      q = s // w, r = s % w

    s = context, w = window (0: all). The diagonal counts half, as in published TFLOP/s: s/2, not (s+1)/2.
    The last q of s tokens see what all s see less what the first s - q see; one token that is written sees s.

    >>> mean_visible(8192), mean_visible(8192, 4096), mean_visible(8192, 4096, chunked=True)
    (4096.0, 3072.0, 2048.0)
    >>> mean_visible(8192, queries=1024), mean_visible(8192, 4096, queries=1), mean_visible(8192, queries=1)
    (7680.0, 4096.0, 8191.5)
    """
    if queries is not None and causal and queries < context:
        before = context - queries
        pairs = mean_visible(context, window, chunked) * context - mean_visible(before, window, chunked) * before
        return pairs / queries
    if not window or window >= context:
        return context / 2 if causal else float(context)
    if chunked:
        windows, remainder = divmod(context, window)
        return (windows * window * window + remainder * remainder) / (2 * context if causal else context)
    return window - window * window / (2 * context) if causal else float(window)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopCount:
    """Flops of one token by part; the parts sum to `total`.

    projections  matrices of softmax and latent attention, an indexer's included
    scores       query x key and probability x value, and an indexer's own scores
    state        state-space and delta-rule mixers: matrices, convolution, recurrence
    mlp          dense feed-forward
    experts      routed experts one token visits, and shared ones
    router       router, gate of the shared part, projections to a latent width
    head         output matrix
    embedding    further matrices before or behind all layers
    captured     what a recorded forward did beside the parts of its layers
    mtp          multi-token prediction: its blocks, projections and one head each
    """

    projections: float = 0.0
    scores: float = 0.0
    state: float = 0.0
    mlp: float = 0.0
    experts: float = 0.0
    router: float = 0.0
    head: float = 0.0
    embedding: float = 0.0
    captured: float = 0.0
    mtp: float = 0.0

    @property
    def total(self) -> float:
        """All parts."""
        return float(sum(getattr(self, field.name) for field in fields(self)))

    def __add__(self, other: FlopCount) -> FlopCount:
        names = [field.name for field in fields(self)]
        return FlopCount(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def times(self, factor: float) -> FlopCount:
        """Every part times a factor."""
        return FlopCount(**{field.name: getattr(self, field.name) * factor for field in fields(self)})


@lru_cache(maxsize=256)
def forward_flops_per_token(spec: ModelSpec, context: int, causal: bool = True, source: int = 0) -> FlopCount:
    """Flops of one token in a forward pass over sequences of `context` tokens, averaged over the sequence.

    source   positions of an encoder's output that cross attention sees; what the encoder does is in `encoder_flops`

        2 * weights a token passes through  +  sum over attention layers of 2 * n * H * (d + v)  +  2 * hidden * vocab

    n = mean visible tokens (`mean_visible`), H = heads, d = size of a key, v = size of a value. Latent attention is in
    its expanded form, as trained. Multi-token prediction is not in here; images are in `tower_flops.image_flops`.

    >>> from ridgeline.models.load import model
    >>> f"{forward_flops_per_token(model('llama3-8b'), 8192).total:.4g}"
    '1.716e+10'
    """
    once = context if spec.head and spec.head.kind == "sequence" else 1
    flops = FlopCount(head=head_flops(spec) / once, embedding=2.0 * spec.embedding.further_weights)
    for block, layers in spec.counts():
        flops = flops + block_flops(block, spec.hidden, context, causal, source).times(layers)
    return flops


def training_flops_per_token(spec: ModelSpec, context: int, causal: bool = True, source: int = 0) -> FlopCount:
    """Flops of one token in a training step without recompute, multi-token prediction included.

        3 * (forward + mtp)          mtp = depth * (block + 2 * 2*h*h + head)

    h = hidden. Backward costs twice forward: a product for the input's gradient and one for the weight's. All weights
    are trained; the optimizer is not counted.

    >>> from ridgeline.models.load import model
    >>> gpt3 = training_flops_per_token(model("gpt3-175b"), 2048, causal=False)
    >>> f"{gpt3.total / 6 / 175e9:.3f}"  # the 6N rule of thumb
    '1.025'
    """
    flops = forward_flops_per_token(spec, context, causal, source)
    if spec.mtp:
        block = block_flops(spec.mtp.block, spec.hidden, context, causal).total
        extra = spec.mtp.depth * (block + 4 * spec.hidden**2 + head_flops(spec))
        flops = flops + FlopCount(mtp=extra)
    return flops.times(3)


def head_flops(spec: ModelSpec) -> float:
    """Flops of one token behind the last layer."""
    width, head = spec.embedding.width, spec.head
    if head is not None and not spec.speaks:
        return 2.0 * (spec.hidden * head.outputs + head.dense)
    return 2.0 * (head.dense if head else 0) + 2.0 * (spec.vocab * (width or spec.hidden) + spec.hidden * width)


def block_flops(block: Block, hidden: int, context: int, causal: bool, source: int = 0) -> FlopCount:
    """Flops of one token in one layer; of cross attention what works on the layer's own tokens, keys and values not."""
    mixer = FlopCount()
    for block_mixer in block.mixers:
        mixer = mixer + _mixer_flops(mixer_parts(block_mixer, hidden), context, causal)
    if block.cross is not None:
        wide = block.cross.width
        mixer = mixer + FlopCount(projections=2.0 * hidden * wide, scores=2.0 * source * wide)
    further = FlopCount(captured=captured_flops(block.captured, context, causal)) if block.captured else FlopCount()
    return mixer + (_ffn_flops(block.ffn, hidden) if block.ffn else FlopCount()) + further


def captured_flops(part: Captured, context: int, causal: bool = True) -> float:
    """Flops of a token in what a recorded forward did: products, scores, recurrences.

        sum of 2 * rows * groups * inputs * outputs  +  sum of 2 * n * H * (d + v)  +  n * pair_flops  +  scan_flops

    n = mean visible tokens, H = heads, d, v = size of a key and a value.

    >>> from ridgeline.models.spec import Product
    >>> captured_flops(Captured(products=(Product(label="mix", inputs=8, outputs=4),), pair_flops=2.0), 16)
    80.0
    """
    products = sum(2.0 * product.rows * product.groups * product.inputs * product.outputs for product in part.products)
    scores = sum(
        2.0
        * mean_visible(context, attention.window, attention.chunked, causal and attention.causal)
        * attention.heads
        * (attention.head_dim + attention.value_dim)
        for attention in part.scores
    )
    return products + scores + mean_visible(context, causal=causal) * part.pair_flops + part.scan_flops


def _ffn_flops(ffn: Ffn, hidden: int) -> FlopCount:
    """Two for each element of the matrices that a token passes: all dense ones, `topk` of the experts."""
    parts = ffn_parts(ffn, hidden)
    dense = parts.dense.up.elements + parts.dense.down.elements if parts.dense else 0
    if not isinstance(ffn, Moe):
        return FlopCount(mlp=2.0 * dense)
    expert = sum(weight.elements for weight in parts.experts) // ffn.experts
    router = sum(weight.elements for weight in parts.router)
    return FlopCount(experts=2.0 * (ffn.topk * expert + dense), router=2.0 * router)


def _mixer_flops(parts: MixerParts, context: int, causal: bool) -> FlopCount:
    """Two for each element of its matrices, and those of its scores or its recurrence.

    scores   sum of 2 * n * H * w        n = entries that a query sees, H = heads, w = widths of a score's products
    """
    products = 2.0 * parts.matrix_elements
    if parts.recurrent is not None:
        return FlopCount(state=products + parts.recurrent.flops)
    scores = 0.0
    for attended_part in parts.attended:
        entries = sum(
            mean_visible(context, span.window, span.chunked, causal and span.causal) / span.rate
            for span in attended_part.spans
        )
        scores += 2.0 * entries * attended_part.heads * attended_part.width
    return FlopCount(projections=products, scores=scores)


def image_flops(spec: ModelSpec, seen: EncoderInput | None = None) -> float:
    """Flops of the image encoder and projector for what it reads, forward; for one image of its own size unless given.

        P * (2*c*e + layers * 2*W) + layers * 4*P*n*e + 2 * projected * projector weights

    P = views * positions, c = numbers of a patch, e = encoder width, W = weights of one encoder layer, n = patches that
    one sees: all of its view, less in windowed layers. The image's tokens in the language model are counted there.

    >>> from ridgeline.models.load import model
    >>> f"{image_flops(model('llava-1.5-7b')):.3g}"
    '4.05e+11'
    """
    vision = spec.vision
    if vision is None:
        return 0.0
    seen = image_input(vision) if seen is None else seen
    full_flops = _layer_flops(without_window(vision.block), vision.hidden, seen.positions)
    window_flops = _layer_flops(without_window(vision.block), vision.hidden, seen.window)
    layers = (vision.layers - vision.windowed) * full_flops + vision.windowed * window_flops
    embed = 2 * vision.patch_inputs * vision.hidden
    return seen.total * (embed + layers) + 2 * seen.projected * vision.projector_params


def audio_flops(spec: ModelSpec, heard: EncoderInput) -> float:
    """Flops of the audio encoder and projector for what it reads, forward.

        P * (2 * front + layers * (2*W + 4*n*e)) + 2 * projected * projector weights

    Letters as in `image_flops`; front = multiply-adds of a position in the convolutions before the layers.
    """
    audio = spec.audio
    if audio is None:
        return 0.0
    layer = _layer_flops(without_window(audio.block), audio.hidden, heard.positions)
    return heard.total * (2.0 * audio.front + audio.layers * layer) + 2 * heard.projected * audio.projector_params


def _layer_flops(block: Block, hidden: int, seen: float) -> float:
    """Flops of one position in a layer where it sees so many, both ways."""
    none, pair = (block_flops(block, hidden, size, causal=False).total for size in (1, 2))
    return none + (pair - none) * (seen - 1)


def without_window(block: Block) -> Block:
    """The layer without its window."""
    return replace(block, mixer=replace(block.mixer, window=0)) if isinstance(block.mixer, Attention) else block


def encoder_flops(spec: ModelSpec, source: int) -> float:
    """Flops of the encoder for one sequence of `source` positions, forward, and of what cross attention makes of them.

        s * (2 * front + layers * block) + s * cross layers * 2 * e * G * (d + v)

    s = source, e = encoder width, G * (d + v) = keys and values of one cross attention; front = multiply-adds of a
    position in convolutions. Positions see each other both ways.

    >>> from ridgeline.models.hf import from_config
    >>> f"{encoder_flops(from_config({'model_type': 'whisper'}), 1500):.3g}"
    '4.05e+10'
    """
    encoder = spec.encoder
    if encoder is None:
        return 0.0
    layer = block_flops(encoder.block, encoder.hidden, source, causal=False).total
    layers_flops = source * (2.0 * encoder.front + encoder.layers * layer)
    return layers_flops + _crossing(spec, encoder.hidden, source)


def _crossing(spec: ModelSpec, width: int, source: int) -> float:
    """Keys and values that cross attention of every layer makes of a source."""
    wide = sum(layers * block.cross.kv for block, layers in spec.counts() if block.cross is not None)
    return 2.0 * source * width * wide


def latent_flops(spec: ModelSpec, seq: int) -> float:
    """Flops of one sequence of a diffusion transformer beside its layers, forward.

        2 * (seq * inputs * h + text * per_text + per_step + modulation) and keys and values of text in cross attention

    h = hidden; modulation = sum over layers of vectors * h * the width that they are made of.
    """
    space = spec.latent_space
    if space is None:
        return 0.0
    vectors = sum(
        layers * block.streams * block.modulation * modulation_inputs(block, spec.hidden)
        for block, layers in spec.counts()
    )
    once = space.per_step + vectors * spec.hidden
    read = 0 if space.joint else space.text
    end_flops = 2.0 * (seq * space.inputs * spec.hidden + space.text * space.per_text + once)
    return end_flops + _crossing(spec, spec.hidden, read)
