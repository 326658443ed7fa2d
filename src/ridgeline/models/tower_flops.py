"""Turn what stands beside a model's layers into flops: encoders of images, sound and tokens, embeddings of latents."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.models.facts import block_flops
from ridgeline.models.media_tokens import image_input
from ridgeline.models.params import modulation_inputs
from ridgeline.models.sizing import EncoderInput
from ridgeline.models.spec import Attention, Block, ModelSpec


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
    wide = sum(
        layers * block.cross.kv_heads * (block.cross.head_dim + block.cross.value_dim)
        for block, layers in spec.counts()
        if block.cross is not None
    )
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
