"""Turn what stands beside a model's layers into flops of one sequence: encoders, embeddings of latents, modulation."""

from __future__ import annotations

from ridgeline.models.facts import block_flops
from ridgeline.models.spec import ModelSpec


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
    own = source * (2.0 * encoder.front + encoder.layers * layer)
    return own + _crossing(spec, encoder.hidden, source)


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

    h = hidden; modulation = sum over layers of vectors * h * h.
    """
    space = spec.latent_space
    if space is None:
        return 0.0
    vectors = sum(layers * block.streams * block.modulation for block, layers in spec.counts())
    once = space.per_step + vectors * spec.hidden**2
    read = 0 if space.joint else space.text
    own = 2.0 * (seq * space.inputs * spec.hidden + space.text * space.per_text + once)
    return own + _crossing(spec, spec.hidden, read)
