"""Several ranks' profiles as one: every rank's rows with its number, so that a slow chip can be told from its peers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def merge_rows(
    heads: Sequence[dict[str, Any]], rows: Sequence[Iterable[dict[str, Any]]]
) -> tuple[dict[str, Any], list[Any]]:
    """The head and rows of a system's profile, from those of its ranks in order.

    The head is the first rank's, with `ranks`: the node, device and driver of each. Rows that already have a rank, and
    those of links, keep what they have.
    """
    members = []
    for rank, head in enumerate(heads):
        device = head.get("device", {})
        members.append({"rank": rank, "node": head.get("host", {}).get("node", ""), "name": device.get("name", "")})
        members[-1] |= {key: device[key] for key in ("driver", "power_limit_w") if key in device}
    merged_rows = []
    for rank, part in enumerate(rows):
        merged_rows += [row if "rank" in row or "ranks" in row else {**row, "rank": rank} for row in part]
    return {**heads[0], "ranks": members}, merged_rows
