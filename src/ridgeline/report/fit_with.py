"""Draw a fit of the user's own runs: before, held out, after."""

from __future__ import annotations

from ridgeline.calibrate.cross_validate import OwnFit
from ridgeline.core.units import format_quantity, signed_share

SHOWN = 20
COLUMNS = ("before_s", "held_out_s", "after_s")


def fit_with_text(found: OwnFit) -> str:
    """The runs with the residuals of the three predictions; without colours."""
    wide = max([len(case.id) for case in found.cases[:SHOWN]] + [4])
    lines = [f"{'run':{wide}}  {'measured':>9}  {'before':>8}  {'held out':>8}  {'after':>8}"]
    for case in found.cases[:SHOWN]:
        off = "  ".join(f"{signed_share(getattr(case, which) / case.measured_s - 1):>8}" for which in COLUMNS)
        lines.append(f"{case.id:{wide}}  {format_quantity(case.measured_s, 's'):>9}  {off}")
    if len(found.cases) > SHOWN:
        lines.append(f"and {len(found.cases) - SHOWN} more")
    mean = "  ".join(f"{found.mape(which):>8.1%}" for which in COLUMNS)
    lines.append(f"{'mean':{wide}}  {'':>9}  {mean}")
    lines.append(
        "before: the prior; held out: anchored on runs of other configurations; after: anchored on all of them"
    )
    lines += [f"not used: {one.id}: {one.reason}" for one in found.skipped[:SHOWN]]
    return "\n".join(lines)
