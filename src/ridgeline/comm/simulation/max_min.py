"""Max-min fair rates of flows that share links: nobody gets more where that would give less to one who has less.

Links are filled together. A link is tight when it is the scarcest of every flow on it; its flows get equal parts of it
and leave the rest of their way to the others. All tight links are settled at once, so few passes are needed; where a
thousand links each have a load of their own, from the eighth pass on links are taken as tight that are nearly so. No
link is ever overfull.
"""

from __future__ import annotations

import numpy as np

from ridgeline.core.arrays import Array, Index

CLOSE = 1e-12
EXACT = 8  # passes; then what counts as equal doubles from NEAR with each
NEAR = 1e-3
FLOOR = 1e-9  # of a link, whatever rounding leaves


def max_min(links: Index, share: Array | None, rates: Array) -> Array:
    """Bytes per second of each flow.

    links   (most links, flows) numbers of links, len(rates) - 1 for none, whose rate is infinite
    share   the part of the flow on each link; None: all of it

    >>> max_min(np.array([[0, 0, 1], [2, 1, 2]]), None, np.array([4.0, 10.0, np.inf])).tolist()
    [2.0, 2.0, 8.0]
    """
    size, flows = len(rates), links.shape[1]
    found, left = np.zeros(flows), rates
    open_: Index | None = None  # all of them
    passes = 0
    while True:
        passes += 1
        close = CLOSE if passes <= EXACT else NEAR * 2 ** (passes - EXACT - 1)
        flat = links.ravel()
        load = np.bincount(flat, None if share is None else share.ravel(), size)
        with np.errstate(divide="ignore", invalid="ignore"):
            scarce = left / load
        offer = scarce[links] if share is None else np.where(share > 0, scarce[links], np.inf)
        best = offer.min(axis=0)
        spare = offer > best * (1 + close)
        tight = np.bincount(flat[spare.ravel()], minlength=size) == 0  # the scarcest link of every flow on it
        tight[-1] = False
        done = tight[links] & ~spare
        settled = done.any(axis=0)
        if settled.all() or not settled.any():  # not any: links without a limit alone
            found[slice(None) if open_ is None else open_] = best
            return found
        rows = np.flatnonzero(settled)
        found[rows if open_ is None else open_[rows]] = best[rows]
        used = np.broadcast_to(best[rows], (len(links), len(rows))) if share is None else best[rows] * share[:, rows]
        taken = np.bincount(links[:, rows].ravel(), used.ravel(), size)
        left = np.maximum(left - taken, FLOOR * rates)
        left[-1] = np.inf
        rest = np.flatnonzero(~settled)
        open_ = rest if open_ is None else open_[rest]
        links, share = links[:, rest], None if share is None else share[:, rest]
