"""How far short predicted peaks of memory fell, written down for the headroom of searches.

    python benchmarks/headroom.py [--check]

Takes benchmarks/witness_h200.csv, whose peaks (torch.cuda.max_memory_allocated) had no part in the memory model, and
writes src/ridgeline/sim/memory/shortfalls.json; with --check nothing is written, and the exit code says whether that
file is what would be. Run it again whenever the memory model changes, or rows are added.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ridgeline.calibrate.folds import dataset_of
from ridgeline.calibrate.truth.rows import read_table
from ridgeline.calibrate.validation import peak_of
from ridgeline.core.files import write_text
from ridgeline.sim.memory.peak import SHIPPED_SHORTFALLS

TABLE = Path(__file__).parent / "witness_h200.csv"


def text() -> str:
    """The file's text: a row for every measured peak."""
    _, rows = read_table(TABLE)
    table = dataset_of(rows)
    lines = []
    for row, scenario in zip(table.rows, table.scenarios, strict=True):
        peak = peak_of(row, scenario)
        if peak is None:
            continue
        engine, family = scenario.engine.fitted_id, scenario.system.chip.family
        shortfall = round(peak.measured / peak.predicted - 1, 4)
        lines.append(json.dumps({"id": row.id, "family": family, "engine": engine, "shortfall": shortfall}))
    return '{"source": "benchmarks/headroom.py on ' + TABLE.name + '", "rows": [\n' + ",\n".join(lines) + "\n]}\n"


def main() -> int:
    """Write the file, or say whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    made = text()
    if parser.parse_args().check:
        same = SHIPPED_SHORTFALLS.is_file() and SHIPPED_SHORTFALLS.read_text(encoding="utf-8") == made
        print("up to date" if same else "shortfalls.json is not what benchmarks/headroom.py writes: run it")
        return 0 if same else 1
    write_text(SHIPPED_SHORTFALLS, made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
