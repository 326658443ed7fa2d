"""How fast algorithms are verified, timed and synthesized, and how near their bounds they come.

    python benchmarks/comm.py [--large] [--json]

CPU seconds of this process, one thread. Baselines, measured on two cores: TACOS needs 72 to 97 s for the all-gather of
mesh:32x32, ForestColl 55 s for the trees of mesh:8x8. `--large` adds 4096 chips.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

from ridgeline.comm.algorithm import turned
from ridgeline.comm.bounds import chunked_bound
from ridgeline.comm.graph import without
from ridgeline.comm.library.gathers import allgather_over, reduce_then_gather, ring_allgather
from ridgeline.comm.select import ring_order
from ridgeline.comm.synthesis.packing import packed_trees
from ridgeline.comm.synthesis.synthesize import gathered, packed_allreduce
from ridgeline.comm.timing import time_algorithm
from ridgeline.comm.topologies import topology
from ridgeline.comm.verify import verify

RATE, ALPHA, SIZE = 50e9, 5e-7, 2.0**30
VERIFY_TARGET = 1_000_000  # steps a core-second
GRAPHS = (("mesh:8x8", ()), ("torus:16x16", ()), ("mesh:32x32", ()), ("torus:32x32", ()), ("torus:8x8x8", ()),
          ("torus:32x32", ("link:3-4", "node:77")), ("mesh:16x16x4", ("link:0-1",)))  # fmt: skip
LARGE = (("mesh:64x64", ()), ("torus:16x16x16", ()), ("torus:64x64", ("link:3-4",)))


def cpu(call: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.process_time()
    found = call()
    return time.process_time() - begun, found


def verification() -> dict[str, float]:
    """Steps a core-second of `verify` and of `time_algorithm`."""
    made = reduce_then_gather(ring_allgather(1024))
    nhr = turned(allgather_over(ring_order(topology("switch:512", RATE)), "nhr", 8))
    rates = {}
    for name, one in (("ring all-reduce, 1024 ranks", made), ("NHR reduce-scatter, 512 ranks", nhr)):
        spent, found = cpu(lambda one=one: verify(one))
        assert found.ok
        rates[f"verify: {name}"] = len(one.steps) / spent
    spent, _ = cpu(lambda: time_algorithm(made, topology("ring:1024", RATE, ALPHA), SIZE))
    rates["time: ring all-reduce, 1024 ranks"] = len(made.steps) / spent
    return rates


def synthesis(large: bool) -> list[dict[str, Any]]:
    """All-gather of one chunk a rank on each graph: seconds to build, rounds, time over the chunked bound."""
    rows = []
    for name, broken in GRAPHS + (LARGE if large else ()):
        graph = without(topology(name, RATE, ALPHA), broken)
        spent, made = cpu(lambda graph=graph: gathered(graph, 1, SIZE))
        timed = time_algorithm(made, graph, SIZE)
        ratio = timed.seconds / chunked_bound(graph, "allgather", SIZE, graph.ranks)
        right = verify(made).ok
        rows.append({"graph": graph.name, "build_s": spent, "rounds": made.rounds, "ratio": ratio, "verified": right})
    return rows


def packing() -> dict[str, float]:
    """All-reduce of 1 GiB on mesh:8x8 by packed trees, in M/b."""
    graph = topology("mesh:8x8", RATE, ALPHA)
    trees_s, _ = cpu(lambda: packed_trees(graph, 32))
    whole_s, made = cpu(lambda: packed_allreduce(graph, SIZE))
    assert verify(made).ok
    return {
        "trees_s": trees_s,
        "build_s": whole_s,
        "of_M_over_b": time_algorithm(made, graph, SIZE).seconds / (SIZE / RATE),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--large", action="store_true")
    options.add_argument("--json", action="store_true")
    asked = options.parse_args()
    rates, rows, packed = verification(), synthesis(asked.large), packing()
    if asked.json:
        print(json.dumps({"steps_per_s": rates, "synthesis": rows, "packing": packed}, indent=2))
        return
    for name, rate in rates.items():
        print(f"{name:45} {rate / 1e6:6.1f} M steps/s (target of verify: {VERIFY_TARGET / 1e6:.0f})")
    for row in rows:
        told = f"{row['rounds']} rounds, {row['ratio']:.3f} of the bound, {'verified' if row['verified'] else 'WRONG'}"
        print(f"{row['graph']:45} {row['build_s']:6.2f} s, {told}")
    spent = f"trees {packed['trees_s']:.2f} s, all {packed['build_s']:.2f} s"
    print(f"mesh:8x8 packed: {spent}, {packed['of_M_over_b']:.3f} M/b")


if __name__ == "__main__":
    main()
