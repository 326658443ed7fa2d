"""Turn what stands beside a model's layers, the encoder that cross attention reads, into flops of one sequence."""

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
    '2.91e+10'
    """
    encoder = spec.encoder
    if encoder is None:
        return 0.0
    layer = block_flops(encoder.block, encoder.hidden, source, causal=False).total
    crossing = sum(
        layers * block.cross.kv_heads * (block.cross.head_dim + block.cross.value_dim)
        for block, layers in spec.counts()
        if block.cross is not None
    )
    return source * (2.0 * encoder.front + encoder.layers * layer + 2.0 * encoder.hidden * crossing)
