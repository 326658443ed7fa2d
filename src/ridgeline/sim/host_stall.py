"""Turn what a chip runs and what its host takes to issue it into the time that the chip waits (launch-bound stretches).

together = (running^10 + issue^10)^(1/10)       the longer of the two, a little more where they are equal
blocking = running + 1.25 issue                 the host waits for every kernel before it issues the next
"""

from __future__ import annotations

import numpy as np

from ridgeline.core.arrays import Array

SHARPNESS = 10.0  # how sharply the slower of host and chip wins
# of issuing a kernel, where the host learns of its end before it issues the next. On one H200 eight layers that take
# the host 12.2 ms to issue and the chip 38.1 ms to run took 53.8 ms with CUDA_LAUNCH_BLOCKING=1
BLOCKING = 1.25


def host_stall(running: Array, issue: Array, blocking: Array) -> Array:
    """Seconds the chip waits because the host has not issued its kernels yet.

    `blocking` is 1 where every launch is waited for.

    >>> running, issue = np.array([2.0, 1.0]), np.array([1.0, 3.0])
    >>> host_stall(running, issue, np.ones(1)).tolist(), host_stall(running, issue, np.zeros(1)).round(3).tolist()
    ([1.25, 3.75], [0.0, 2.0])
    """
    most = np.maximum(np.maximum(running, issue), 1e-30)
    share = np.minimum(running, issue)
    share /= most
    share *= share
    share *= (share * share) ** 2
    np.log1p(share, out=share)
    share /= SHARPNESS
    most *= np.exp(share, out=share)
    stall: Array = most - running
    return np.where(blocking > 0, BLOCKING * issue, stall) if blocking.any() else stall
