"""Make Kineto traces with known answers: overlap, gaps and their causes, stragglers, graphs, odd names.

    python tests/traces.py FOLDER        write the traces that the documentation analyses

A step is a row of equal layers. Each layer runs a matrix product and an elementwise kernel on the compute stream, and a
reduction on a second stream that begins `hidden_us` before the compute ends; then the chip is idle for `gap_us`:

    compute  |--matmul--|-element-|            |--matmul--|…
    network            |--hidden--|-exposed-|
                                             gap
"""

from __future__ import annotations

import gzip
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

Event = dict[str, Any]
HOST, COMPUTE, NETWORK = 4242, 7, 20
LEAD = 4.0  # microseconds from a launch to its kernel where nothing queues
ODD = ("</script><b>x", "gemm\u0007\u001b[31m", "ядро_gemm", "a" * 5000, "", '"quoted"\\back', "nvjet \u2028 line")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One rank's trace. Times are microseconds with at most three decimals."""

    steps: int = 2
    layers: int = 4
    matmul_us: float = 100.0
    element_us: float = 20.0
    reduce_us: float = 80.0
    hidden_us: float = 60.0
    gap_us: float = 15.0
    cause: str = "host"
    """Of the gaps: host, sync, data, communication (no gap on the host's side; the compute waits for the network)."""
    graph: bool = False
    """One launch a step for all its kernels."""
    names: tuple[str, ...] = ("nvjet_tst_128x256", "vectorized_elementwise_kernel", "ncclDevKernel_AllReduce_Sum")
    m: int = 4096
    n: int = 4096
    k: int = 1024
    rank: int = 0
    world: int = 1
    chip: str = "NVIDIA H100 80GB HBM3"
    unlinked: int = 0
    """Kernels in front of the first step whose launch is not in the trace, `matmul_us` each, a gap behind each."""
    start_us: float = 1_000_000.0

    @property
    def layer_us(self) -> float:
        return self.matmul_us + self.element_us + self.reduce_us - self.hidden_us + self.gap_us


@dataclass(frozen=True, kw_only=True)
class Known:
    """What an analysis of the trace must find."""

    span_us: float
    idle_us: float
    compute_us: float
    communication_us: float
    exposed_communication_us: float


def known(recipe: Recipe) -> Known:
    """The answers, by adding up; policy all."""
    many, extra = recipe.steps * recipe.layers, recipe.unlinked
    return Known(
        span_us=many * recipe.layer_us - recipe.gap_us + extra * (recipe.matmul_us + recipe.gap_us),
        idle_us=(many - 1 + extra) * recipe.gap_us,
        compute_us=many * (recipe.matmul_us + recipe.element_us) + extra * recipe.matmul_us,
        communication_us=many * recipe.reduce_us,
        exposed_communication_us=many * (recipe.reduce_us - recipe.hidden_us),
    )


class Maker:
    """Collects the events of one rank."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.events = recipe, list[Event]()
        self._correlation = 0

    def trace(self) -> dict[str, Any]:
        """The whole file, filled by the recipe."""
        recipe, at = self.recipe, self.recipe.start_us
        for _ in range(recipe.unlinked):
            self.kernel(recipe.names[0], COMPUTE, at, recipe.matmul_us, self.next())
            at += recipe.matmul_us + recipe.gap_us
        for step in range(recipe.steps):
            at = self.step(step, at)
        return self.whole()

    def whole(self) -> dict[str, Any]:
        """A file of what was collected."""
        recipe = self.recipe
        told = {"backend": "nccl", "rank": recipe.rank, "world_size": recipe.world}
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": recipe.rank, "name": recipe.chip, "totalGlobalMem": 85018279936}],
            **({"distributedInfo": told} if recipe.world > 1 else {}),
            "displayTimeUnit": "ms",
            "traceEvents": [*self.events, *self.metadata()],
            "traceName": "generated",
        }

    def step(self, step: int, at: float) -> float:
        recipe, begin = self.recipe, at - 2 * LEAD
        shared = self.next() if recipe.graph else 0
        if recipe.graph:
            self.call("cudaGraphLaunch", begin + 1, 3.0, shared)
        for layer in range(recipe.layers):
            at = self.layer(at, layer, shared)
        end = at - recipe.gap_us + 1 if recipe.cause != "data" else at - 3 * LEAD
        self.span("user_annotation", f"ProfilerStep#{step}", HOST, HOST, begin, end - begin - LEAD)
        return at

    def layer(self, at: float, layer: int, shared: int) -> float:
        recipe = self.recipe
        matmul, element, reduce = recipe.names
        after = at + recipe.matmul_us
        done = after + recipe.element_us
        dims, kinds = [[recipe.m, recipe.k], [recipe.k, recipe.n]], ["c10::BFloat16"] * 2
        self.op("aten::mm", at - LEAD - 1, matmul, COMPUTE, at, recipe.matmul_us, shared, dims=dims, types=kinds)
        self.op("aten::mul", at - LEAD + 2.5, element, COMPUTE, after, recipe.element_us, shared)
        if recipe.reduce_us:
            begin = done - recipe.hidden_us
            self.op("c10d::allreduce_", at - LEAD + 5, reduce, NETWORK, begin, recipe.reduce_us, shared, moved=recipe.m)
        over = at + recipe.layer_us - recipe.gap_us
        self.fill_gap(over, recipe.gap_us)
        return at + recipe.layer_us

    def fill_gap(self, start: float, length: float) -> None:
        """What the host does while the chip idles, apart from launching late."""
        if length < 3 * LEAD:
            return
        if self.recipe.cause == "sync":
            self.call("cudaStreamSynchronize", start - 20, 20 + length - 3 * LEAD, self.next())
        elif self.recipe.cause == "data":
            self.span("user_annotation", "enumerate(DataLoader)#_next_data", HOST, HOST, start - 1, length - 2 * LEAD)

    def op(
        self, op: str, at: float, name: str, stream: int, start: float, length: float, shared: int, **more: Any
    ) -> None:  # fmt: skip
        """A host op, its launch inside it, and the kernel."""
        args: Event = {"External id": len(self.events) + 1}
        if "dims" in more:
            args |= {"Input Dims": more["dims"], "Input type": more["types"]}
        self.span("cpu_op", op, HOST, HOST, at, 2.4, args)
        correlation = shared or self.next()
        if not shared:
            self.call("cudaLaunchKernel", at + 0.5, 1.5, correlation)
        fact: Event = {}
        if "moved" in more:
            fact = {
                "Collective name": more.get("collective", "allreduce"),
                "dtype": "BFloat16", "In msg nelems": more["moved"] * 1024,
                "Out msg nelems": more["moved"] * 1024, "Group size": self.recipe.world, "Process Group Name": "0",
            }  # fmt: skip
        self.kernel(name, stream, start, length, correlation, fact)

    def call(self, name: str, start: float, length: float, correlation: int) -> None:
        self.span("cuda_runtime", name, HOST, HOST, start, length, {"correlation": correlation, "cbid": 211})

    def kernel(
        self, name: str, stream: int, start: float, length: float, correlation: int, fact: Event | None = None
    ) -> None:  # fmt: skip
        args = {"device": self.recipe.rank, "stream": stream, "correlation": correlation, **(fact or {})}
        self.span("kernel", name, self.recipe.rank, stream, start, length, args)

    def span(
        self, cat: str, name: str, pid: int, tid: int, start: float, length: float, args: Event | None = None
    ) -> None:  # fmt: skip
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": round(start, 3)}
        self.events.append(event | {"dur": round(length, 3)} | ({"args": args} if args else {}))

    def next(self) -> int:
        self._correlation += 1
        return self._correlation

    def metadata(self) -> list[Event]:
        labels = ((HOST, "CPU"), (self.recipe.rank, f"GPU {self.recipe.rank}"))
        return [
            {"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "args": {"labels": label}}
            for pid, label in labels
        ]


def make(recipe: Recipe) -> dict[str, Any]:
    """The trace of one rank, ready for `json.dumps`."""
    return Maker(recipe).trace()


def straggling(world: int, late_us: float, recipe: Recipe) -> list[Recipe]:
    """Recipes of all ranks: the last computes `late_us` longer a layer, the others' reductions wait for it."""
    last = replace(recipe, rank=world - 1, world=world, matmul_us=recipe.matmul_us + late_us)
    waiting = replace(recipe, world=world, reduce_us=recipe.reduce_us + late_us)
    return [*(replace(waiting, rank=rank) for rank in range(world - 1)), last]


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Equal stages, one a rank: all forwards in order, then all backwards; every boundary sends and receives.

        span       (m + p - 1) (f + b) + 2 (p - 1) c          bubble of every stage   span - m (f + b)

    m microbatches, p stages, f and b microseconds each, c microseconds of a transfer. Receives are posted one behind
    the other and spin until their message is there.
    """

    stages: int = 4
    microbatches: int = 6
    forward_us: float = 100.0
    backward_us: float = 200.0
    transfer_us: float = 30.0
    named: bool = True
    """Sends and receives say with whom; otherwise kernels are called SendRecv and only their group is recorded."""
    ahead_us: float = 0.0
    """How far the clock of each rank is ahead of the one before."""
    last: float = 1.0
    """How many times as long as the others the last stage computes."""

    @property
    def span_us(self) -> float:
        work = self.forward_us + self.backward_us
        return (self.microbatches + self.stages - 1) * work + 2 * (self.stages - 1) * self.transfer_us

    def traces(self) -> list[dict[str, Any]]:
        """One trace a rank."""
        makers = [
            Maker(replace(Recipe(), rank=rank, world=self.stages, start_us=1_000_000.0 + rank * self.ahead_us))
            for rank in range(self.stages)
        ]
        free = [0.0] * self.stages
        for stages, length, step in (
            (range(self.stages), self.forward_us, 1), (range(self.stages)[::-1], self.backward_us, -1),
        ):  # fmt: skip
            posted = [0.0] * self.stages
            for _ in range(self.microbatches):
                sent = 0.0
                for place, stage in enumerate(stages):
                    if place:
                        begin = max(sent, posted[stage])
                        self._pass(makers, (stage - step, sent), (stage, posted[stage]), begin + self.transfer_us)
                        posted[stage] = begin + self.transfer_us
                    at = max(free[stage], posted[stage] if place else 0.0)
                    own = length * (self.last if stage == self.stages - 1 else 1.0)
                    self._kernel(makers[stage], "nvjet_gemm", COMPUTE, at, own)
                    sent = free[stage] = at + own
        return [maker.whole() for maker in makers]

    def _pass(
        self, makers: list[Maker], sender: tuple[int, float], receiver: tuple[int, float], until: float
    ) -> None:  # fmt: skip
        """A send and its receive, from each start until the one end."""
        (source, sent), (target, posted) = sender, receiver
        group = sorted((source, target))
        for rank, start, name, word, other in (
            (source, sent, "send", "Dst Rank", target), (target, posted, "recv", "Src Rank", source),
        ):  # fmt: skip
            record: Event = {
                "Collective name": name, "dtype": "BFloat16", "In msg nelems": 4096, "Out msg nelems": 4096,
                "Group size": self.stages, "Process Group Name": "pipeline",
                "Process Group Ranks": str(list(range(self.stages))), word: other,
            }  # fmt: skip
            if not self.named:
                record |= {"Collective name": "SendRecv", "Group size": 2, "Process Group Ranks": str(group)}
                record.pop(word)
            stream = 30 + 2 * (source < target) + (rank == target)
            self._kernel(makers[rank], "ncclDevKernel_SendRecv", stream, start, until - start, record)

    def _kernel(
        self, maker: Maker, name: str, stream: int, start: float, length: float, record: Event | None = None
    ) -> None:  # fmt: skip
        """A kernel launched long before the pipeline began."""
        correlation, begin = maker.next(), maker.recipe.start_us
        maker.call("cudaLaunchKernel", begin - 5000 + 3 * correlation, 2.0, correlation)
        maker.kernel(name, stream, begin + start, length, correlation, record)


def write(trace: object, path: Path) -> Path:
    """Write a trace, compressed when the name says so."""
    text = json.dumps(trace)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode(), 6, mtime=0))
    else:
        path.write_text(text, encoding="utf-8")
    return path


EAGER = Recipe(cause="host", gap_us=45.0, layers=24, steps=3, world=8, k=2048)
EXAMPLES = {"eager": EAGER, "graphs": replace(EAGER, graph=True, gap_us=1.5)}
"""The traces of the documentation, by file name."""


RANKS = straggling(4, 40.0, Recipe(gap_us=1.5, layers=24, graph=True, k=2048))
"""A folder of ranks for the documentation: the last computes 40 us longer a layer."""


def main() -> None:
    folder = Path(sys.argv[1])
    for name, recipe in EXAMPLES.items():
        print(write(make(recipe), folder / f"{name}.json.gz"))
    for recipe in RANKS:
        write(make(recipe), folder / "ranks" / f"rank{recipe.rank}.json.gz")
    print(folder / "ranks")


if __name__ == "__main__":
    main()
