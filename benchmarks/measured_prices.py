"""What measured prices cost a search: CPU seconds of one sweep with a profile over the same without.

python benchmarks/measured_prices.py [PROFILE]        a profile of an h200-sxm; the shipped one unless given
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from ridgeline.calibrate.profile_sources import profiles_of
from ridgeline.cost.calibration import Calibration, default_calibration
from ridgeline.cost.profile import Choice
from ridgeline.search.training.plan_search import find_plan
from ridgeline.search.training.request import PlanRequest, cases

ROUNDS = 5


def taken(used: Calibration) -> tuple[float, int]:
    """The least CPU seconds of several sweeps, and the plans of one."""
    request = PlanRequest.from_options("llama3-70b", on="64xh200-sxm", global_batch=512)
    case = next(iter(cases(request, [])))
    least, plans = float("inf"), 0
    for _ in range(ROUNDS):
        began = time.process_time()
        plans = find_plan(case.scenario, case.pins, calibration=used).swept.considered
        least = min(least, time.process_time() - began)
    return least, plans


def main() -> None:
    own: Choice = sys.argv[1] if len(sys.argv) > 1 else None
    bare, measured = (taken(replace(default_calibration(), profiles=profiles_of(choice))) for choice in ("none", own))
    told = f"{bare[0]:.2f} s without a profile, {measured[0]:.2f} s with, {measured[0] / bare[0]:.1f} times"
    print(f"{bare[1]:,} plans: {told}")


if __name__ == "__main__":
    main()
