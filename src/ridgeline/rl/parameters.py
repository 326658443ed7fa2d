"""What post-training costs beyond its phases: few numbers, fitted on published runs, with what they were fitted on."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from ridgeline.core.records import dataclass
from ridgeline.rl.lengths import clipped_lognormal_mean

FILE = Path(__file__).with_name("parameters.toml")
PACED = (
    *("rollout_factor", "training_factor", "forward_factor", "decode_step_s", "token_s", "eager_layer_s"),
    *("tensor_s", "bucket_s", "convert_s", "switch_s"),
)
"""What a pace multiplies: every factor of passes and every second of software."""
USUAL_SIGMA = 0.8  # standard deviation of the logarithm of lengths about their usual mean: assumed


@dataclass(frozen=True, slots=True, kw_only=True)
class RlParameters:
    """Factors, shares, and seconds of software.

    rollout_factor, training_factor, forward_factor   measured phases over predicted ones
    colocated_factor   updates and forward passes that share their chips with an engine over those that do not
    decode_step_s  of a step of the rollout engine beyond what serving takes: sampling, log-probabilities, the loop
    token_s        of one sampled token: an engine in a loop hands it over, detokenises it and keeps its log-probability
    eager_layer_s  of the host for a layer of a step whose kernels are launched one by one
    other_share    of all phases: rewards, data, waiting between phases
    tensor_s, bucket_s   software of a weight sync, for each tensor or bucket
    convert_s      of a tensor on its way from the trainer's layout and name to the engine's, beside the wire
    switch_s       sleeping and waking an engine, each time
    answer_tokens, reasoning_tokens   mean answer of a model that answers at once, and of one that reasons before it,
                   were nothing to cut it: what is taken where lengths are not stated
    turn_tokens    that an agent writes in a turn
    answer_spread  standard deviation of the logarithm of such a mean: how little is known of it
    spread         standard deviation of log(measured / predicted) on families that no fit saw
    """

    rollout_factor: float = 1.0
    training_factor: float = 1.0
    forward_factor: float = 1.0
    colocated_factor: float = 1.0
    decode_step_s: float = 0.0
    token_s: float = 0.0
    eager_layer_s: float = 0.0
    other_share: float = 0.0
    tensor_s: float = 0.0
    bucket_s: float = 0.0
    convert_s: float = 0.0
    switch_s: float = 0.0
    answer_tokens: float = 1000.0
    reasoning_tokens: float = 6000.0
    turn_tokens: float = 300.0
    answer_spread: float = 0.6
    spread: float = 0.3
    runs: int = 0
    families: int = 0
    own_runs: int = 0

    def usual_answer(self, longest: float, *, reasons: bool = False, turns: float = 1.0) -> float:
        """Mean answer in tokens where nobody states it: lognormal lengths about what is usual, cut at the longest.

        >>> values = RlParameters()
        >>> [round(values.usual_answer(longest)) for longest in (512, 2048, 28672)]
        [451, 890, 1000]
        >>> round(values.usual_answer(8192, reasons=True)), round(values.usual_answer(8192, turns=8))
        (4735, 2309)
        """
        usual = self.reasoning_tokens if reasons else self.answer_tokens
        usual = self.turn_tokens * turns if turns > 1 else usual
        return clipped_lognormal_mean(math.log(usual) - USUAL_SIGMA**2 / 2, USUAL_SIGMA, longest)

    def at_pace(self, log_errors: Sequence[float]) -> RlParameters:
        """These parameters after measured steps of one's own: one number for all passes and all software.

        log_errors   log(measured / predicted) of each

            log pace = sum of n / (n + 1)        spread^2 -> spread^2 / 2 x (1 + 1 / (n + 1))

        Half of the variance is what runs of one owner share, half is each run's own: a number from n runs is drawn to 1
        by one run.

        >>> own = RlParameters(spread=0.3).at_pace([math.log(1.5), math.log(1.5)])
        >>> round(own.rollout_factor, 3), round(own.spread, 3)
        (1.31, 0.245)
        """
        if not log_errors:
            return self
        many = len(log_errors) + 1
        pace = math.exp(sum(log_errors) / many)
        changed = {name: pace * getattr(self, name) for name in PACED}
        return replace(self, **changed, own_runs=len(log_errors), spread=self.spread * math.sqrt((1 + 1 / many) / 2))

    def uncut_answer(self, mean: float, longest: float) -> float:
        """Mean answer that a mean of cut ones tells of, were nothing to cut them: `usual_answer` the other way round.

        >>> values = RlParameters()
        >>> round(values.uncut_answer(889, 2048), -1)
        1000.0
        """
        low, high = math.log(mean), math.log(mean) + 4.0
        for _ in range(40):
            middle = (low + high) / 2
            shorter = clipped_lognormal_mean(middle - USUAL_SIGMA**2 / 2, USUAL_SIGMA, longest) < mean
            low, high = (middle, high) if shorter else (low, middle)
        return math.exp((low + high) / 2)


@cache
def shipped_parameters() -> RlParameters:
    """The parameters that ship with Ridgeline."""
    with FILE.open("rb") as stream:
        table = tomllib.load(stream)
    values = {name: entry["value"] for name, entry in table.items() if isinstance(entry, dict)}
    return RlParameters(**values, runs=table.get("runs", 0), families=table.get("families", 0))
