"""Measure a device where Ridgeline is not installed: `python FILE.pyz --device cuda --minutes 8 -o profile.json`."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ridgeline.core.documents import JsonObject
from ridgeline.runtime.probe.case import GROUPS, KernelCase
from ridgeline.runtime.probe.ranks import find_world
from ridgeline.runtime.probe.session import measure_ranks
from ridgeline.runtime.probe.supervisor import Refused, Settings, ignore_progress


def main() -> int:
    """0: a profile was written; 2: the device or an argument cannot be used."""
    parser = argparse.ArgumentParser(prog="characterize", description=__doc__)
    parser.add_argument("--device", default="cuda", help="any torch device string: cuda, cpu, npu, xpu, mps, cuda:1")
    parser.add_argument("--minutes", type=float, default=5.0, help="the time box")
    parser.add_argument("-o", "--output", type=Path, default=Path("profile.json"), help="the profile to write")
    parser.add_argument("--resume", action="store_true", help="go on with the journal of a run that broke off")
    parser.add_argument("--only", default="", help="groups, comma-separated: " + ", ".join(GROUPS))
    parser.add_argument("--chip", help="catalog id of the chip, where its name does not tell")
    parser.add_argument("--import", dest="imports", action="append", default=[], help="a package that adds a device")
    parser.add_argument(
        "--backend", default="", help="of torch.distributed under torchrun; the device's own if left out"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the inputs")
    options_ = parser.parse_args()
    only = tuple(part for part in options_.only.split(",") if part)
    for part in only:
        if part not in GROUPS:
            parser.error(f"--only: got {part!r}, expected some of {', '.join(GROUPS)}")
    if not 0 < options_.minutes <= 24 * 60:
        parser.error(f"--minutes: got {options_.minutes}, expected a number above 0 and up to 1440")
    if not options_.output.absolute().parent.is_dir():
        parser.error(f"-o: got {options_.output}, expected a file in a folder that exists")
    if importlib.util.find_spec("torch") is None:
        parser.error("torch is not installed for this Python; measuring needs torch and numpy")
    settings = Settings(
        device=options_.device, minutes=options_.minutes, imports=tuple(options_.imports), seed=options_.seed
    )
    world = find_world()
    options: JsonObject = {"resume": options_.resume, "only": only, "chip": options_.chip}
    options["watch"] = _Plain(options_.minutes) if world.rank == 0 else ignore_progress
    try:
        outcome = measure_ranks(settings, options_.output, world, group_backend=options_.backend, **options)
    except Refused as wrong:
        parser.error(f"--device: {wrong}")
    if world.rank:
        return 0
    print(
        f"{options_.output}: {len(outcome.rows)} rows, {len(outcome.failures)} of them failing, "
        f"{outcome.left} cases left out"
    )
    return 0


class _Plain:
    """Progress as plain lines, one every twenty seconds."""

    def __init__(self, minutes: float) -> None:
        self.began, self.next, self.minutes = time.monotonic(), 0.0, minutes

    def __call__(self, count: int, total: int, case: KernelCase, _rows: Sequence[JsonObject]) -> None:
        spent = time.monotonic() - self.began
        if spent >= self.next:
            self.next = spent + 20
            print(
                f"{spent:5.0f} s of {self.minutes * 60:.0f}  {count} of {total}  tier {case.tier}  {case.kernel}",
                file=sys.stderr,
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())
