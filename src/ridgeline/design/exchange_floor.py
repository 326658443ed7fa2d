"""Turn a mixture of experts and a link into the time that its tokens' exchange takes at least, whatever overlaps.

    per layer   (1 B there + 2 B back) x tokens x (experts of a token + shared ones) x hidden / bandwidth
    a token     per layer x 2 microbatches that take turns x layers

No engine decodes faster than its exchange, even where all else hides behind it. DeepSeek-V3's authors did this sum for
400 Gbit/s links (arXiv:2505.09343, section 2.3.2).
"""

from __future__ import annotations

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.models.spec import ModelSpec, Moe

DISPATCH_BYTES, COMBINE_BYTES = 1, 2  # of a number: fp8 there, bf16 back
MICROBATCHES = 2  # that compute and communicate in turns


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeFloor:
    """Seconds of the exchange of one layer, and of one token through all layers."""

    layer_s: float
    tpot_s: float

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second of one request at most."""
        return 1 / self.tpot_s


def exchange_floor(model: ModelSpec, bytes_per_s: float, tokens: int = 32, rounded_to: int = 1) -> ExchangeFloor:
    """The floor of a model's decode on links of one rate; `tokens` of a chip and microbatch.

    rounded_to   the width counts in whole multiples of this: the authors write 7 K for 7168

    >>> from ridgeline.models.load import model
    >>> floor = exchange_floor(model("deepseek-v3"), 50e9)
    >>> f"{floor.layer_s * 1e6:.2f} us, {floor.tpot_s * 1e3:.2f} ms, {floor.tokens_per_s:.0f} tokens/s"
    '123.86 us, 15.11 ms, 66 tokens/s'
    >>> published = exchange_floor(model("deepseek-v3"), 50e9, rounded_to=1000)
    >>> f"{published.layer_s * 1e6:.2f} us, {published.tpot_s * 1e3:.2f} ms"
    '120.96 us, 14.76 ms'
    """
    mixtures = [block.ffn for block in model.blocks if isinstance(block.ffn, Moe)]
    if not mixtures:
        raise InputError(Problem(path="model", given=f"{model.id} without experts", expected="a mixture of experts"))
    experts = mixtures[-1]
    copies = experts.topk + (1 if experts.shared_hidden else 0)
    layer_s = (
        (DISPATCH_BYTES + COMBINE_BYTES) * tokens * copies * (model.hidden // rounded_to * rounded_to) / bytes_per_s
    )
    return ExchangeFloor(layer_s=layer_s, tpot_s=layer_s * MICROBATCHES * model.layers)
