"""How many tokens a query sees, averaged over a sequence."""

from __future__ import annotations


def mean_visible(
    context: int, window: int = 0, chunked: bool = False, causal: bool = True, queries: int | None = None
) -> float:
    """Tokens a query sees, averaged over a sequence, or over its last `queries` tokens.

        all, causal        s/2                       full  s
        sliding, causal    w - w*w/(2*s)             full  w               where w < s, else as above
        chunked, causal    (q*w*w + r*r) / (2*s)     full  twice that      q = s // w, r = s % w

    s = context, w = window (0: all). The diagonal counts half, as in published TFLOP/s: s/2, not (s+1)/2.
    The last q of s tokens see what all s see less what the first s - q see; one token that is written sees s.

    >>> mean_visible(8192), mean_visible(8192, 4096), mean_visible(8192, 4096, chunked=True)
    (4096.0, 3072.0, 2048.0)
    >>> mean_visible(8192, queries=1024), mean_visible(8192, 4096, queries=1), mean_visible(8192, queries=1)
    (7680.0, 4096.0, 8191.5)
    """
    if queries is not None and causal and queries < context:
        before = context - queries
        pairs = mean_visible(context, window, chunked) * context - mean_visible(before, window, chunked) * before
        return pairs / queries
    if not window or window >= context:
        return context / 2 if causal else float(context)
    if chunked:
        whole, rest = divmod(context, window)
        return (whole * window * window + rest * rest) / (2 * context if causal else context)
    return window - window * window / (2 * context) if causal else float(window)
