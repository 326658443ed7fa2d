"""Predicted and measured steps of small plans on one and two processes of this host.

    chrt -r 10 python benchmarks/run_cpu.py          real-time priority where others use the machine too

Each plan is one start of `ridgeline run examples/tiny-2xcpu.toml --json`; the measured step is the median behind the
first. Predictions use the profile that ships for the chip `cpu`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCENARIO = ROOT / "examples" / "tiny-2xcpu.toml"
STEPS = 12
PLANS: dict[str, tuple[str, ...]] = {
    "one process": ("system=1xcpu", "plan.dp=1", "plan.shard=none"),
    "one process, 8 sequences at a time": ("system=1xcpu", "plan.dp=1", "plan.shard=none", "plan.microbatch=8"),
    "dp 2": ("plan.shard=none",),
    "pp 2": ("plan.dp=1", "plan.pp=2", "plan.shard=none"),
    "dp 2, zero1": ("plan.shard=zero1",),
    "dp 2, zero3": (),
    "tp 2": ("plan.dp=1", "plan.tp=2", "plan.shard=none"),
}


def measured(settings: tuple[str, ...]) -> tuple[float, float]:
    """Seconds of a step, predicted and measured."""
    words = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "ridgeline", "run", str(SCENARIO), "--steps", str(STEPS), "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    sheet = json.loads(done.stdout)
    return sheet["predicted_step_s"], sheet["step_s"]


def main() -> None:
    print(f"{'plan':<36}{'predicted':>12}{'measured':>12}{'residual':>10}")
    for name, settings in PLANS.items():
        predicted, seen = measured(settings)
        print(f"{name:<36}{predicted * 1e3:>9.1f} ms{seen * 1e3:>9.1f} ms{predicted / seen - 1:>+10.1%}")


if __name__ == "__main__":
    main()
