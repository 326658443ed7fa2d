"""Turn failure rate, checkpoint and restart times into the share of wall time that is useful, exactly.

Failures of the whole job come at random with rate L = 1 / mtbf and no memory. Training saves its state every `tau`
seconds of work. Saving stops it for `b` seconds; then the state is written beside training for `w` more, and only then
does the checkpoint count. A failure is detected after `d`; a restart takes `r` and may fail itself, to be detected and
started again. Work goes back to the last checkpoint that was complete.

Expected wall time from one complete checkpoint to the next. A stretch of length M that must pass without failure, begun
again after every failure at a price R, takes on average (1/L + R) (e^(L M) - 1): solve E = (1 - e^(-LM)) (1/L + R + E).
A restart is such a stretch, so its price is R = d + (1 - e^(-Lr)) (1/L + R), and 1/L + R = (1/L + d) e^(Lr).
The first try needs tau + b; after a failure the work done beside the last write is gone too, and it needs tau + b + w:

    wall = (1 - e^(-L (tau+b))) (1/L + R + (1/L + R) (e^(L (tau+b+w)) - 1))
         = (1/L + d) e^(L (r+w)) (e^(L (tau+b)) - 1)

The useful share is tau / wall. Its best tau does not depend on d, r or w: 1 - L tau = e^(-L (tau+b)).
Not counted: the first and last interval of a run, work slowed by a write beside it, failures that come in bunches.
Every number may be an array over plans.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.ir.ops import Num

SHORTEST = 1e-9  # of the mean time between failures: checkpoints that cost nothing are not taken more often than this
ROUNDS = 6  # of Newton; the start is good to a few percent and each round squares the error


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruptions:
    """What stops a run, in seconds; numbers, or arrays over plans.

    mtbf_s      mean time between failures of the whole job, while it runs or restarts
    block_s     training stands still for each checkpoint
    write_s     further time until the checkpoint is complete, beside training
    detect_s    from a failure to the begin of a restart
    restart_s   from there to training again
    shortest_s  no interval can be shorter: a step, for one
    """

    mtbf_s: Num
    block_s: Num
    write_s: Num = 0.0
    detect_s: Num = 0.0
    restart_s: Num = 0.0
    shortest_s: Num = 0.0

    def __post_init__(self) -> None:
        wrong = [Problem(path=name, given=f"{np.asarray(value).min():g} s", expected="a finite time")
                 for name, value in ((field.name, getattr(self, field.name)) for field in fields(self))
                 if not (np.isfinite(value) & (np.asarray(value) >= 0)).all()]  # fmt: skip
        if not wrong and not (np.asarray(self.mtbf_s) > 0).all():
            wrong = [Problem(path="mtbf_s", given="0 s", expected="a time above 0")]
        if wrong:
            raise InputError(wrong)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Where wall time goes; the five sum to 1.

    useful      work that is kept
    checkpoint  standing still for checkpoints that count
    detect      between a failure and its restart
    restart     restarts, failed ones included
    lost        work done again, and checkpoints that a failure undid
    """

    useful: Num
    checkpoint: Num
    detect: Num
    restart: Num
    lost: Num


def best_interval(what: Interruptions) -> Num:
    """Seconds of work between checkpoints that make the useful share largest.

        u = L tau solves  -ln(1 - u) - u = L b        that is  u = 1 + W(-e^(-1 - L b)), W = Lambert's

    solved by Newton for v = -ln(1 - u), where it is smooth for any L b. The interval is never shorter than a step, nor
    than the writing beside it: one checkpoint is complete before the next begins.

    >>> round(float(best_interval(Interruptions(mtbf_s=3600.0, block_s=60.0))))
    618
    """
    mtbf = np.asarray(what.mtbf_s, dtype=np.float64)
    cost = np.asarray(what.block_s / mtbf, dtype=np.float64)
    some = np.where(cost > 0, cost, 1.0)
    v = np.sqrt(2 * some) + some * np.where(some < 1, 1 / 3, 1.0)
    for _ in range(ROUNDS):
        v = v - (v + np.expm1(-v) - some) / -np.expm1(-v)
    tau = np.where(cost > 0, -np.expm1(-v) * mtbf, 0.0)
    floor = np.maximum(np.maximum(what.shortest_s, what.write_s), SHORTEST * mtbf)
    return _plain(np.maximum(tau, floor))


def useful_share(what: Interruptions, interval_s: Num) -> Num:
    """Share of wall time that is work kept, when checkpoints come every `interval_s` seconds of work.

        tau / wall = L tau e^(-L (r+w)) / ((1 + L d) (e^(L (tau+b)) - 1))        for tau >= w

    >>> round(float(useful_share(Interruptions(mtbf_s=3600.0, block_s=60.0, restart_s=600.0), 618.0)), 3)
    0.701
    """
    rate = 1 / np.asarray(what.mtbf_s, dtype=np.float64)
    stretch = rate * (interval_s + what.block_s)
    decay = np.exp(-rate * (what.restart_s + what.write_s) - stretch) / -np.expm1(-stretch)
    return _plain(rate * interval_s * decay / (1 + rate * what.detect_s))


def failures_per_s(what: Interruptions) -> Num:
    """Failures in a second of wall time: rate L while the job runs or restarts, none while it waits to be detected.

    n = L (1 - n d)    hence    n = L / (1 + L d)
    """
    return _plain(1 / (np.asarray(what.mtbf_s, dtype=np.float64) + what.detect_s))


def shares(what: Interruptions, interval_s: Num | None = None) -> Shares:
    """Where wall time goes, at the best interval unless another is given.

        checkpoint = useful b / tau        detect = n d        restart = n (1 - e^(-L r)) / L        lost = the rest

    n = failures per second: each is followed by one detection and one try to restart.

    >>> parts = shares(Interruptions(mtbf_s=3600.0, block_s=60.0, detect_s=60.0, restart_s=600.0))
    >>> [round(float(part), 3) for part in (parts.useful, parts.checkpoint, parts.detect, parts.restart, parts.lost)]
    [0.69, 0.067, 0.016, 0.151, 0.076]
    """
    tau = best_interval(what) if interval_s is None else interval_s
    useful, count = useful_share(what, tau), failures_per_s(what)
    mtbf = np.asarray(what.mtbf_s, dtype=np.float64)
    checkpoint, detect = useful * what.block_s / tau, count * what.detect_s
    restart = count * mtbf * -np.expm1(-what.restart_s / mtbf)
    lost = np.maximum(0.0, 1.0 - useful - checkpoint - detect - restart)
    return Shares(
        useful=useful, checkpoint=_plain(checkpoint), detect=_plain(detect), restart=_plain(restart), lost=_plain(lost)
    )


def _plain(value: Num) -> Num:
    """A plain number where there is only one."""
    result = np.asarray(value, dtype=np.float64)
    return float(result) if result.ndim == 0 else result
