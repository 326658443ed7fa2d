"""How fast algorithms are verified, timed and synthesized, and how near their bounds they come.

    python benchmarks/comm.py [--large | --simulation | --hashed | --methods | --table] [--json]

CPU seconds of this process, one thread. Baselines, measured on two cores: TACOS needs 72 to 97 s for the all-gather of
mesh:32x32, ForestColl 55 s for the trees of mesh:8x8. `--large` adds 4096 chips. `--simulation` measures the simulator
beside a plain one (`plain_fluid.py`), whose times it must give; `--hashed` where paths
collide, `--methods` what is off without its core. `--table` prints what
docs/concepts/collective-algorithms.md shows: synthesis end to end, by collective and graph, beside bound and library.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from plain_fluid import plain_seconds

from ridgeline.comm.algorithm import Algorithm, reduce_then_gather, reversed_algorithm
from ridgeline.comm.answer import answer
from ridgeline.comm.bounds import chunked_bound
from ridgeline.comm.graph import Graph, slow_links, without
from ridgeline.comm.library.algorithms import allgather_over, pairwise, ring_allgather
from ridgeline.comm.library.candidates import ring_order
from ridgeline.comm.select import candidates, fastest
from ridgeline.comm.simulation.conditions import Conditions, parse_conditions
from ridgeline.comm.simulation.fluid_windows import WINDOW
from ridgeline.comm.simulation.messages import Job
from ridgeline.comm.simulation.simulate import over_seeds, simulate
from ridgeline.comm.synthesis.packing import packed_trees
from ridgeline.comm.synthesis.synthesize import gather_algorithm, packed_allreduce, synthesize
from ridgeline.comm.timing import time_algorithm
from ridgeline.comm.topologies import graph_of_system, topology
from ridgeline.comm.verify import verify_algorithm
from ridgeline.hardware.load import system

RATE, ALPHA, SIZE = 50e9, 5e-7, 2.0**30
VERIFY_TARGET = 1_000_000  # steps a core-second
SEEDS = 5  # of hashed paths; the verb takes 20
HASHED_SEEDS = 32  # of those that collide
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
    nhr = reversed_algorithm(allgather_over(ring_order(topology("switch:512", RATE)), "nhr", 8))
    rates = {}
    for name, one in (("ring all-reduce, 1024 ranks", made), ("NHR reduce-scatter, 512 ranks", nhr)):
        spent, found = cpu(lambda one=one: verify_algorithm(one))
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
        spent, made = cpu(lambda graph=graph: gather_algorithm(graph, 1, SIZE))
        timed = time_algorithm(made, graph, SIZE)
        ratio = timed.seconds / chunked_bound(graph, "allgather", SIZE, graph.ranks)
        right = verify_algorithm(made).ok
        rows.append({"graph": graph.name, "build_s": spent, "rounds": made.rounds, "ratio": ratio, "verified": right})
    return rows


TABLE = (
    ("mesh:32x32", (), ("allgather", "reducescatter", "allreduce")),
    ("torus:32x32", (), ("allgather", "allreduce")),
    ("torus:32x32", ("link:3-4", "node:77"), ("allgather", "allreduce")),
    ("random:256x4", (), ("allgather", "allreduce", "alltoall")),
    ("mesh:8x8", (), ("allreduce",)),
    ("torus:8x8", ("link:3-4",), ("allgather", "alltoall", "broadcast")),
    ("random:64x4", (), ("alltoall",)),
    ("64xh100-sxm", (), ("allgather", "allreduce", "broadcast")),
    ("64xmi300x", (), ("allgather", "broadcast")),
    ("64xascend-910b", (), ("allgather",)),
    ("144xgb200-nvl72", (), ("allgather",)),
    ("planes:48x7", (), ("allgather",)),
    ("switch:16", ("node:3:0.25",), ("allreduce",)),
    ("leafspine:4x8x8", ("node:3:0.25",), ("allreduce",)),
)
LARGE_TABLE = (("mesh:64x64", (), ("allgather", "reducescatter", "allreduce")),)
COMPARED_RANKS = 256  # with the library as it is: beyond, its algorithms take longer than the synthesis


def table(large: bool) -> list[dict[str, Any]]:
    """Synthesis end to end for 1 GiB: CPU seconds to build and verify, time over the bounds, and the library."""
    rows = []
    for name, broken, kinds in LARGE_TABLE if large else TABLE:
        whole = topology(name, RATE, ALPHA) if ":" in name else graph_of_system(system(name))
        slow = [part for part in broken if part.count(":") == 2]
        graph = slow_links(without(whole, [part for part in broken if part not in slow]), slow)
        for kind in kinds:
            spent, made = cpu(lambda graph=graph, kind=kind: synthesize(kind, graph, SIZE))
            checked, found = cpu(lambda made=made: verify_algorithm(made))
            assert found.ok
            told = answer(kind, graph, SIZE, made, time_algorithm(made, graph, SIZE), spent)
            known = fastest(kind, graph, SIZE) if graph.ranks <= COMPARED_RANKS else None
            rows.append(
                {"graph": graph.name, "collective": kind, "algorithm": made.name, "build_s": spent, "verify_s": checked,
                 "steps": len(made.steps), "seconds": told.seconds, "ratio": told.ratio_to_bound,
                 "over_bound": told.seconds / told.bound.seconds,
                 "library": f"{known[0].name} {known[1].seconds / told.seconds:.2f}x" if known else ""}
            )  # fmt: skip
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    """The rows as Markdown."""
    print(
        "| graph | collective | algorithm | built | verified | time | of its chunks' bound | of the bound | library |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        times = f"{row['build_s']:.2f} s | {row['verify_s']:.2f} s | {row['seconds'] * 1e3:.2f} ms"
        ratios = f"{row['ratio']:.3f} | {row['over_bound']:.3f}"
        print(f"| {row['graph']} | {row['collective']} | {row['algorithm']} | {times} | {ratios} | {row['library']} |")


def packing() -> dict[str, float]:
    """All-reduce of 1 GiB on mesh:8x8 by packed trees, in M/b."""
    graph = topology("mesh:8x8", RATE, ALPHA)
    trees_s, _ = cpu(lambda: packed_trees(graph, 32))
    whole_s, made = cpu(lambda: packed_allreduce(graph, SIZE))
    assert verify_algorithm(made).ok
    return {
        "trees_s": trees_s,
        "build_s": whole_s,
        "of_M_over_b": time_algorithm(made, graph, SIZE).seconds / (SIZE / RATE),
    }


def simulation() -> list[dict[str, Any]]:
    """Transfers a core-second of the simulator, and of a plain one on the same kind of network, smaller."""
    cases = (
        ("ring all-reduce", "ring:1024", "ring:32", Conditions(paths="shortest"), _ring),
        ("ring all-reduce, a straggler", "ring:1024", "", Conditions(paths="shortest", slower={5: 1.3}), _ring),
        ("bucket all-reduce", "torus:32x32", "torus:4x4", Conditions(paths="shortest"), _bucket),
        ("bucket all-reduce, a straggler", "torus:32x32", "", Conditions(paths="shortest", slower={5: 1.3}), _bucket),
        ("NHR all-gather", "switch:1024", "switch:16", Conditions(paths="shortest"), _nhr),
        ("all-pairs all-to-all, hashed", "leafspine:32x16x16", "", Conditions(), _pairs),
    )
    simulate([Job(algorithm=ring_allgather(8), size_bytes=SIZE)], topology("ring:8", RATE, ALPHA), Conditions())
    rows = []
    for name, large, small, asked, make in cases:
        graph = topology(large, RATE, ALPHA)
        job = Job(algorithm=make(graph), size_bytes=SIZE)
        seeds = range(SEEDS if asked.paths == "ecmp" else 1)
        spent, runs = cpu(
            lambda job=job, graph=graph, asked=asked, seeds=seeds: list(over_seeds([job], graph, asked, seeds))
        )
        found = runs[0]
        row = {"case": f"{name}, {large}", "transfers": found.transfers}
        row["transfers_per_s"] = len(runs) * found.transfers / spent
        row["moments"] = found.moments
        if small:
            little = topology(small, RATE, ALPHA)
            few = Job(algorithm=make(little), size_bytes=SIZE)
            mine = simulate([few], little, asked).seconds
            plain, seconds = cpu(lambda few=few, little=little: plain_seconds(few.algorithm, little, SIZE))
            assert abs(mine / seconds - 1) < 1e-3, name
            row["plain_per_s"] = len(few.algorithm.steps) / plain
        rows.append(row)
    return rows


def hashed(repeats: int = 3) -> list[dict[str, Any]]:
    """Hashed paths where every message starts when its own predecessors end, at max-min rates from moment to moment.

    A transfer is one chunk that crosses from rank to rank (a step of the algorithm); a message is what a rank sends
    another in one round, one or more chunks, with a start, an end and a rate of its own. Everything counts: messages,
    queues, path choice, simulation. The best of some repeats, beside the same by columns and windows on 64 ranks.
    """
    slow = {"background": ["20%"], "straggler": ["5:1.3", "9:50us"]}
    cases = (
        ("ring all-reduce", "rails:64x8x64", "rails:8x8x8", {}, _ring),
        ("ring all-reduce, random order", "leafspine:32x16x16", "leafspine:8x8x8", {}, _scattered),
        ("the same, background, stragglers", "leafspine:32x16x16", "leafspine:8x8x8", slow, _scattered),
        ("ring all-reduce, random order", "leafspine:32x32x32", "", {}, _scattered),
        ("halving-doubling all-reduce", "leafspine:32x16x16", "leafspine:8x8x8", {}, _halving),
        ("halving-doubling all-reduce", "leafspine:32x32x32", "", {}, _halving),
        ("pairwise all-to-all", "rails:64x8x64", "rails:8x8x8", {}, pairwise_of),
        ("pairwise all-to-all", "leafspine:32x16x16", "leafspine:8x8x8", {}, pairwise_of),
    )
    rows = []
    for name, large, small, asked, make in cases:
        graph = topology(large, RATE, ALPHA)
        job, under = Job(algorithm=make(graph), size_bytes=SIZE), parse_conditions(graph, **asked)
        list(over_seeds([job], graph, under, range(1)))
        row: dict[str, Any] = {"case": f"{name}, {large}"}
        for seeds in (1, HASHED_SEEDS):
            spent, runs = min(
                (cpu(lambda job=job, graph=graph, under=under, seeds=seeds: _rates(job, graph, under, seeds))
                 for _ in range(repeats if seeds == 1 else 1)), key=lambda one: one[0],
            )  # fmt: skip
            row |= {"transfers": runs[0], "messages": runs[1], "method": runs[2]}
            row[f"transfers_per_s_{seeds}"] = seeds * runs[0] / spent
            row[f"messages_per_s_{seeds}"] = seeds * runs[1] / spent
        if small:
            few = topology(small, RATE, ALPHA)
            work = Job(algorithm=make(few), size_bytes=SIZE)
            same = parse_conditions(few, **asked)
            spent, found = cpu(lambda work=work, few=few, same=same: simulate([work], few, same, WINDOW))
            row["columns_messages_per_s"] = len(found.arrived_s) / spent
        rows.append(row)
    return rows


def _rates(job: Job, graph: Graph, under: Conditions, seeds: int) -> tuple[int, int, str]:
    """Run all seeds; transfers, messages and method of one."""
    for found in over_seeds([job], graph, under, range(seeds)):
        told = found.transfers, len(found.arrived_s), found.method
    return told


def print_hashed(rows: list[dict[str, Any]]) -> None:
    """The rows as Markdown, in millions a core-second."""
    many = HASHED_SEEDS
    heads = ("transfers, one seed", f"{many} seeds", "messages, one seed", f"{many} seeds", "by columns", "method")
    print(f"| hashed paths | {' | '.join(heads)} |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        parts = [row[f"{what}_per_s_{seeds}"] / 1e6 for what in ("transfers", "messages") for seeds in (1, many)]
        columns = f"{row['columns_messages_per_s'] / 1e6:.3f}" if "columns_messages_per_s" in row else ""
        print(f"| {row['case']} | {' | '.join(f'{one:.2f}' for one in parts)} | {columns} | {row['method']} |")


def methods(seeds: int = 8) -> None:
    """How far windows and rounds are off the exact end on 64 ranks, mean and range over seeds, as Markdown."""
    graph, order = topology("leafspine:8x8x8", RATE, ALPHA), np.random.default_rng(0).permutation(64)
    cases = {
        "ring all-gather, random order": allgather_over(order, "ring"),
        "NHR all-reduce, random order": reduce_then_gather(allgather_over(order, "nhr")),
        "halving-doubling all-reduce": _halving(graph),
        "pairwise all-to-all": pairwise_of(graph),
        "all-pairs all-to-all": _pairs(graph),
    }
    print("| | windows | rounds |\n|---|---|---|")
    for name, algorithm in cases.items():
        job = Job(algorithm=algorithm, size_bytes=SIZE)
        ends = [
            np.array([one.seconds for one in over_seeds([job], graph, Conditions(sharing=how), range(seeds), window)])
            for how, window in (("max-min", None), ("max-min", WINDOW), ("rounds", None))
        ]
        off = [100 * (other / ends[0] - 1) for other in ends[1:]]
        cells = [f"{one.mean():+.1f} % ({one.min():+.1f} to {one.max():+.1f})" for one in off]
        print(f"| {name} | {' | '.join(cells)} |")


def pairwise_of(graph: Graph) -> Algorithm:
    return pairwise(graph.ranks)


def _halving(graph: Graph) -> Algorithm:
    return reduce_then_gather(allgather_over(np.arange(graph.ranks), "halving-doubling"))


def _ring(graph: Graph) -> Algorithm:
    return reduce_then_gather(ring_allgather(graph.ranks))


def _bucket(graph: Graph) -> Algorithm:
    return next(form.make() for form in candidates("allreduce", graph) if form.name == "bucket")


def _nhr(graph: Graph) -> Algorithm:
    return allgather_over(np.arange(graph.ranks), "nhr")


def _pairs(graph: Graph) -> Algorithm:
    return pairwise(graph.ranks, at_once=True)


def _scattered(graph: Graph) -> Algorithm:
    return reduce_then_gather(allgather_over(np.random.default_rng(0).permutation(graph.ranks), "ring"))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--large", action="store_true")
    options.add_argument("--simulation", action="store_true", help="the simulator alone")
    options.add_argument("--hashed", action="store_true", help="the simulator where paths collide")
    options.add_argument("--methods", action="store_true", help="how far windows and rounds are off")
    options.add_argument("--table", action="store_true", help="synthesis end to end, as the page shows it")
    options.add_argument("--json", action="store_true")
    asked = options.parse_args()
    if asked.simulation:
        for row in simulation():
            plain = f", plain {row['plain_per_s'] / 1e6:.4f}" if "plain_per_s" in row else ""
            told = f"{row['transfers']:,} transfers, {row['moments']} moments"
            print(f"{row['case']:52} {row['transfers_per_s'] / 1e6:6.2f} M transfers/s{plain} ({told})")
        return
    if asked.methods:
        methods()
        return
    if asked.hashed:
        rows = hashed()
        print(json.dumps(rows, indent=2)) if asked.json else print_hashed(rows)
        return
    if asked.table:
        rows = table(asked.large)
        print(json.dumps(rows, indent=2)) if asked.json else print_table(rows)
        return
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
