"""Max-min fair rates of flows that share links: nobody gets more where that would give less to one who has less.

Links are filled together. A link is tight when it is the scarcest of every flow on it; its flows get equal parts of it
and leave the rest of their way to the others. All tight links are settled at once, so few passes are needed.
"""

from __future__ import annotations

import numpy as np

from ridgeline.core.arrays import Array, Index

CLOSE = 1e-12
FLOOR = 1e-9  # of a link, whatever rounding leaves


def max_min(links: Index, share: Array | None, rates: Array) -> Array:
    """Bytes per second of each flow.

    links   (flows, most links) numbers of links, len(rates) - 1 for none, whose rate is infinite
    share   the part of the flow on each link; None: all of it

    >>> max_min(np.array([[0, 2], [0, 1], [1, 2]]), None, np.array([4.0, 10.0, np.inf])).tolist()
    [2.0, 2.0, 8.0]
    """
    size = len(rates)
    flows = len(links)
    found, open_ = np.zeros(flows), np.arange(flows)
    left = rates.copy()
    while len(open_):
        over = links[open_]
        flat = over.ravel()
        part = None if share is None else share[open_]
        load = np.bincount(flat, None if part is None else part.ravel(), size)
        with np.errstate(divide="ignore", invalid="ignore"):
            scarce = left / load
        offer = scarce[over] if part is None else np.where(part > 0, scarce[over], np.inf)
        best = offer.min(axis=1)
        hit = offer <= (best * (1 + CLOSE))[:, None]
        if hit.all():
            found[open_] = best
            break
        count = np.bincount(flat, minlength=size)
        tight = np.bincount(flat, hit.ravel(), size) >= count
        tight[-1] = False
        done = (hit & tight[over]).any(axis=1)
        if not done.any():  # links without a limit alone
            done[:] = True
        settled = open_[done]
        found[settled] = best[done]
        if done.all():
            break
        used = best[done][:, None] if part is None else best[done][:, None] * part[done]
        taken = np.bincount(over[done].ravel(), np.broadcast_to(used, over[done].shape).ravel(), size)
        left = np.maximum(left - taken, FLOOR * rates)
        left[-1] = np.inf
        open_ = open_[~done]
    return found
