"""What post-training costs beyond its phases: few numbers, fitted on published runs, with what they were fitted on."""

from __future__ import annotations

import math
import tomllib
from functools import cache
from pathlib import Path

from ridgeline.core.records import dataclass

FILE = Path(__file__).with_name("parameters.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class RlParameters:
    """Factors, shares, and seconds of software.

    rollout_factor, training_factor, forward_factor   measured phases over predicted ones
    colocated_factor   updates and forward passes that share their chips with an engine over those that do not
    decode_step_s  of a step of the rollout engine beyond what serving takes: sampling, log-probabilities, the loop
    other_share    of all phases: rewards, data, waiting between phases
    tensor_s, bucket_s   software of a weight sync, for each tensor or bucket
    switch_s       sleeping and waking an engine, each time
    answer_root    mean answer over the square root of the longest one, where lengths are not stated
    spread         standard deviation of log(measured / predicted) on families that no fit saw
    """

    rollout_factor: float = 1.0
    training_factor: float = 1.0
    forward_factor: float = 1.0
    colocated_factor: float = 1.0
    decode_step_s: float = 0.0
    other_share: float = 0.0
    tensor_s: float = 0.0
    bucket_s: float = 0.0
    switch_s: float = 0.0
    answer_root: float = 30.0
    spread: float = 0.3
    runs: int = 0
    families: int = 0

    def usual_answer(self, longest: float) -> float:
        """Mean answer in tokens where nobody states it: it grows with the root of the longest one.

        >>> round(RlParameters(answer_root=30.0).usual_answer(8192))
        2715
        """
        return min(self.answer_root * math.sqrt(longest), 0.7 * longest)


@cache
def shipped_parameters() -> RlParameters:
    """The parameters that ship with Ridgeline."""
    with FILE.open("rb") as stream:
        table = tomllib.load(stream)
    values = {name: entry["value"] for name, entry in table.items() if isinstance(entry, dict)}
    return RlParameters(**values, runs=table.get("runs", 0), families=table.get("families", 0))
