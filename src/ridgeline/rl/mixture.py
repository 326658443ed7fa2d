"""Turn sources of data and a share of replay into the lengths of a step's documents, and into what replay costs.

Replay is a share of a step, not more of it: `prompts` documents are trained on with it and without. With share s of
them from earlier data a step sees (1 - s) as much that is new: the same new data takes 1 / (1 - s) as many steps.
"""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.core.records import dataclass
from ridgeline.plan.rl_mixture import EARLIER, mixture_at
from ridgeline.plan.rl_workload import DataReplay, Rl
from ridgeline.rl.lengths import LengthMoments, moments

MIDDLE = 0.5  # of the schedule: where a step is predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCost:
    """What earlier data takes of a step.

    share                  of a step's documents, in the middle of the schedule; first_share, last_share: at its ends
    tokens, token_share    of earlier data in a step; documents of sources need not be equally long
    seconds                of a step that they take
    steps_factor           steps for the same new data, over those without replay
    sources                share of a step's tokens by source
    """

    share: float
    first_share: float
    last_share: float
    tokens: float
    token_share: float
    seconds: float
    steps_factor: float
    cost_per_1000_steps_usd: float | None
    sources: Mapping[str, float]

    JSON = "* -cost_per_1000_steps_usd cost_per_1000_steps_usd?"


def schedule_step(work: Rl, progress: float) -> int:
    """The step at this part of the mixture's schedule."""
    return round((work.replay or DataReplay()).steps * progress)


def mixture_moves(work: Rl) -> bool:
    """Whether the mixture at the end of its schedule is another one than at its beginning."""
    return mixture_at(work, 0) != mixture_at(work, schedule_step(work, 1.0))


def document_lengths(work: Rl, growth: float, progress: float = MIDDLE) -> LengthMoments:
    """Lengths of what a step trains on: of a prompt and its answer, or of its sources' documents in their shares."""
    usual = moments(work.data.prompt_tokens, work.data.response_tokens, growth)
    if not any(source.document_tokens for source in work.sources.values()):
        return usual
    shares = mixture_at(work, schedule_step(work, progress))
    parts = [(share, _source_lengths(work, name, usual)) for name, share in shares.items() if share]
    mean = sum(share * part.mean for share, part in parts)
    return LengthMoments(
        mean=mean,
        p90=max(part.p90 for _, part in parts),  # at most
        longest=max(part.longest for _, part in parts),
        attended=sum(share * part.mean * part.attended for share, part in parts) / mean,
    )


def replay_cost(work: Rl, step_s: float, tokens: float, cost_usd: float | None) -> ReplayCost | None:
    """What replay takes of a predicted step; None where there are neither sources nor replay."""
    if work.replay is None and not work.sources:
        return None
    usual = moments(work.data.prompt_tokens, work.data.response_tokens)
    ends = [_earlier_share(work, progress) for progress in (0.0, MIDDLE, 1.0)]
    mixture = mixture_at(work, schedule_step(work, MIDDLE))
    weights = {name: share * _source_lengths(work, name, usual).mean for name, share in mixture.items()}
    sources = {name: weight / sum(weights.values()) for name, weight in weights.items()}
    token_share = sum(share for name, share in sources.items() if _is_earlier(work, name))
    return ReplayCost(
        share=ends[1], first_share=ends[0], last_share=ends[2], tokens=tokens * token_share, token_share=token_share,
        seconds=step_s * token_share, steps_factor=1 / (1 - ends[1]), sources=sources,
        cost_per_1000_steps_usd=None if cost_usd is None else cost_usd * 1000 * token_share,
    )  # fmt: skip


def _earlier_share(work: Rl, progress: float) -> float:
    mixture = mixture_at(work, schedule_step(work, progress))
    return sum(share for name, share in mixture.items() if _is_earlier(work, name))


def _is_earlier(work: Rl, name: str) -> bool:
    return work.sources[name].earlier if name in work.sources else name == EARLIER


def _source_lengths(work: Rl, name: str, usual: LengthMoments) -> LengthMoments:
    """Lengths of one source's documents; the workload's where it states none."""
    own_tokens = work.sources[name].document_tokens if name in work.sources else None
    return usual if own_tokens is None else moments(own_tokens, None)
