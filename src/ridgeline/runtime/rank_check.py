"""Find the slow chip, the slow link and the wrong setting of a system before a run, each rank against its peers.

Nothing is changed: what the environment, the driver and the kernel say is read and compared. A reference is a profile,
whose rows become plain seconds of the same shapes: no prediction.
"""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.runtime.measure import need_torch, read_profile_table
from ridgeline.runtime.peers import Outlier, PeerLimit, Report, deviation, outliers, slow_links
from ridgeline.runtime.probe.ranks import World, find_world

if TYPE_CHECKING:
    from ridgeline.runtime.probe.timing import Bench


PREFIXES = ("NCCL_", "TORCH_NCCL_", "HCCL_", "RCCL_", "GLOO_", "UCX_", "FI_", "CUDA_", "PYTORCH_", "OMP_", "MKL_")
NAMES = ("TORCH_DISTRIBUTED_DEBUG", "ONEDNN_MAX_CPU_ISA", "ASCEND_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING")
OWN = ("CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA")  # may differ between ranks of a sound system
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
SLOWING = {
    "CUDA_LAUNCH_BLOCKING": ("1", "every launch waits for its kernel"),
    "HIP_LAUNCH_BLOCKING": ("1", "every launch waits for its kernel"),
    "ASCEND_LAUNCH_BLOCKING": ("1", "every launch waits for its kernel"),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", "every collective is checked against all ranks first"),
    "NCCL_P2P_DISABLE": ("1", "chips of a node talk through the host"),
    "NCCL_IB_DISABLE": ("1", "nodes talk over TCP"),
    "NCCL_SHM_DISABLE": ("1", "ranks of a host talk over the network"),
    "NCCL_DEBUG": ("TRACE", "every call is logged"),
}
"""Variables that slow a run when they have this value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingProblem:
    """A setting that is wrong or differs: who has it, its value, what was expected and what to do."""

    who: str
    what: str
    value: str
    expected: str
    advice: str


def collect(facts: JsonMapping, software: JsonMapping, local_ranks: int) -> dict[str, str]:
    """The settings of this rank as texts: environment, versions, what the device and the host say of themselves."""
    settings = {
        f"env {name}": value for name, value in os.environ.items() if name.startswith(PREFIXES) or name in NAMES
    }
    settings |= {f"software {name}": str(value) for name, value in software.items()}
    settings |= {f"device {name}": str(value) for name, value in facts.items()}
    with contextlib.suppress(OSError):
        settings["host governor"] = GOVERNOR.read_text("ascii").strip()
    if hasattr(os, "sched_getaffinity"):
        settings["host cores a rank may use"] = str(len(os.sched_getaffinity(0)))
    settings["host kernel"] = platform.release()
    settings["host ranks"] = str(local_ranks)
    return settings


def problems(ranks: Sequence[Mapping[str, str]], hosts: Sequence[str]) -> list[SettingProblem]:
    """What differs between ranks, and what slows each of them."""
    problems_ = []
    for name in sorted({key for rank in ranks for key in rank}):
        problems_ += _differing(name, [rank.get(name, "unset") for rank in ranks], hosts)
    for name, (value, effect) in SLOWING.items():
        slowed = [rank for rank, settings in enumerate(ranks) if settings.get(f"env {name}", "").upper() == value]
        if slowed:
            who, advice = _ranks(slowed, hosts), f"{effect}: unset it"
            problems_.append(SettingProblem(who=who, what=name, value=value, expected="unset", advice=advice))
    return problems_ + _limited_links(ranks, hosts)


def _differing(name: str, values: Sequence[str], hosts: Sequence[str]) -> list[SettingProblem]:
    """Ranks whose value is not that of the most."""
    value_counts = Counter(values)
    bare = name.partition(" ")[2]
    if len(value_counts) == 1 or bare.startswith(OWN):
        return []
    usual = value_counts.most_common(1)[0][0]
    advice = "set it alike on all ranks" if name.startswith("env ") else "make the ranks alike"
    ranks_of = {
        value: [rank for rank, rank_value in enumerate(values) if rank_value == value] for value in value_counts
    }
    return [
        SettingProblem(who=_ranks(ranks_of[value], hosts), what=bare, value=value, expected=usual, advice=advice)
        for value in sorted(set(value_counts) - {usual})
    ]


def _limited_links(ranks: Sequence[Mapping[str, str]], hosts: Sequence[str]) -> list[SettingProblem]:
    """Devices held below what they were built for."""
    problems_ = []
    for current, built, what in (
        ("device power_limit_w", "device power_default_w", "power limit in W"),
        ("device pcie_width", "device pcie_width_max", "lanes of PCI Express"),
    ):
        low = [rank for rank, settings in enumerate(ranks) if 0 < _number(settings, current) < _number(settings, built)]
        if low:
            who, first = _ranks(low, hosts), ranks[low[0]]
            values = {"value": first[current], "expected": first[built]}
            problems_.append(SettingProblem(who=who, what=what, advice="ask who set it", **values))
    return problems_


def _number(one: Mapping[str, str], key: str) -> float:
    try:
        return float(one.get(key, "0"))
    except ValueError:
        return 0.0


def warnings(ranks: Sequence[Mapping[str, str]], hosts: Sequence[str]) -> list[str]:
    """Settings worth a look that do not stop a run."""
    equal = {
        "memory errors go unnoticed: ECC is off": ("device ecc", "False"),
        "the driver may unload between runs: persistence mode is off": ("device persistence", "False"),
        "the host's clock follows its load: the governor is powersave": ("host governor", "powersave"),
        "the host's clock follows its load: the governor is ondemand": ("host governor", "ondemand"),
    }
    who = {
        text: [at for at, rank in enumerate(ranks) if rank.get(key) == wrong] for text, (key, wrong) in equal.items()
    }
    cores = [(_number(rank, "host cores a rank may use"), _number(rank, "host ranks")) for rank in ranks]
    who["fewer cores than ranks on the host"] = [at for at, (own, all_) in enumerate(cores) if 0 < own < all_]
    shared = [at for at, rank in enumerate(ranks) if rank.get("host ranks") != "1"]
    who["OMP_NUM_THREADS is unset, so that each rank takes every core"] = [
        at for at in shared if "env OMP_NUM_THREADS" not in ranks[at]
    ]
    return [f"{_ranks(places, hosts)}: {text}" for text, places in who.items() if places]


def _ranks(who: Sequence[int], hosts: Sequence[str]) -> str:
    if len(who) == len(hosts):
        return "every rank"
    if len(who) == 1:
        return f"rank {who[0]} ({hosts[who[0]]})"
    return "ranks " + ", ".join(map(str, who[:8])) + (f" and {len(who) - 8} more" if len(who) > 8 else "")


SHAPES: Mapping[str, JsonMapping] = {
    "product": {"op": "gemm", "impl": "torch", "dtype": "bf16", "m": 4096, "n": 4096, "k": 4096},
    "copy": {"op": "copy", "bytes": 1 << 30, "cold": True},
    "h2d": {"op": "h2d", "bytes": 1 << 26, "pinned": True},
    "launch": {"op": "launch", "kind": "kernel"},
    "link": {"op": "send_recv", "bytes": 1 << 26, "nodes": 1},
    "all_reduce": {"op": "all_reduce", "bytes": 1 << 26},
}
"""The row of a profile that each figure is."""
CPU_SHAPES: Mapping[str, JsonMapping] = {
    "copy": {"op": "copy", "bytes": 1 << 24, "cold": True},
    "launch": {"op": "launch", "kind": "kernel"},
}


def figures_of(table: JsonMapping) -> dict[str, float]:
    """Seconds by figure; over ranks the median. Figures whose row is absent are absent.

    >>> figures_of({"rows": [{"op": "launch", "kind": "kernel", "s": 4e-6, "ok": True}]})
    {'launch': 4e-06}
    """
    device = table.get("device")
    is_cpu = isinstance(device, dict) and device.get("type") == "cpu"
    figures = {}
    for name, shape in (CPU_SHAPES if is_cpu else SHAPES).items():
        rows = [row for row in table["rows"] if all(row.get(key) == value for key, value in shape.items())]
        seconds = [float(row["s"]) for row in rows if row.get("ok") and isinstance(row.get("s"), (int, float))]
        if seconds:
            figures[name] = statistics.median(seconds)
    return figures


LIMITS = {"product": 0.05, "copy": 0.05, "h2d": 0.2, "launch": 0.5, "link": 0.2, "latency": 1.0}
"""How much slower than its peers a rank or pair may be; what depends on the host varies more than what a chip does."""
CPU_LIMITS = {"product": 0.5, "copy": 0.5, "launch": 1.0, "link": 2.0, "latency": 4.0}
"""The same where ranks share the cores that they measure with whatever else runs there."""
REFERENCE_GAP = 0.1  # slower than the reference by more than this is told


ADVICE = {
    "chip": "leave it out, or have it looked at: clocks, power, memory errors, another process",
    "link": "look at the cable, the port, the switch and what NCCL says it uses",
    "reference": "compare driver, clocks and power limit with those of the profile",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of all ranks: seconds, the peers' median and robust deviation over it, and who is slowest."""

    name: str
    median: float
    spread: float
    worst: str
    value: float
    reference: float | None = None

    JSON = "name unit='s' median spread worst value reference?"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightFinding:
    """One thing that is wrong: a chip, a link, a chip against the reference, or a setting.

    value, expected   seconds, or the texts of a setting
    gap               how much slower, as a share
    score             robust deviations from the peers
    """

    kind: str
    who: str
    what: str
    value: float | str
    expected: float | str
    advice: str
    gap: float | None = None
    score: float | None = None

    JSON = "* gap? score?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """What was found.

    chips, links   members that are slower than their peers beyond chance
    behind         members slower than the reference that was handed in
    settings       what is set wrongly, or not alike
    warnings       settings worth a look
    """

    ranks: int
    nodes: int
    device: str
    seconds: float
    figures: tuple[Figure, ...]
    chips: tuple[Outlier, ...]
    links: tuple[Outlier, ...]
    behind: tuple[Outlier, ...]
    settings: tuple[SettingProblem, ...]
    warnings: tuple[str, ...]

    JSON = "kind='preflight' ok ranks nodes device seconds figures outliers warnings"

    @property
    def outliers(self) -> tuple[PreflightFinding, ...]:
        """Everything that is wrong: slow chips, slow links, members behind the reference, settings."""
        slow = {"chip": self.chips, "link": self.links, "reference": self.behind}
        findings = [
            PreflightFinding(
                kind=kind, who=outlier.member, what=outlier.figure, value=outlier.value,
                expected=outlier.expected, gap=outlier.gap,
                advice=ADVICE[kind], score=outlier.score or None,
            )
            for kind, members in slow.items()
            for outlier in members
        ]  # fmt: skip
        return (*findings, *(PreflightFinding(kind="setting", **asdict(setting)) for setting in self.settings))

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.chips or self.links or self.behind or self.settings)


def preflight(
    device: str = "cuda",
    *,
    reference: Path | str | Mapping[str, float] | None = None,
    drill: int | None = None,
    imports: Sequence[str] = (),
    backend: str = "",
) -> Preflight | None:
    """Measure every rank of torchrun or Slurm beside its peers; the findings at rank 0, None at the others.

    device      any torch device string; each rank takes the device of its local rank
    reference   a profile, or seconds by figure: what a sound chip measures
    drill       slow this rank on purpose, to see that it is found
    backend     of torch.distributed; the device's own if empty
    """
    need_torch("preflight")
    began = time.monotonic()
    is_file = isinstance(reference, (str, Path))
    reference_figures = figures_of(read_profile_table(Path(reference))) if is_file else dict(reference or {})  # type: ignore[arg-type]
    world = find_world()
    if drill is not None and not 0 <= drill < world.ranks:
        expected_text = f"a rank from 0 to {world.ranks - 1}"
        raise InputError(
            Problem(path="--drill", given=str(drill), expected=expected_text, todo=("start it with torchrun"))
        )
    reports = _measure(device, world, drill == world.rank, imports, backend)
    if world.rank != 0:
        return None
    return judge(reports, world.nodes, reference_figures, time.monotonic() - began)


def _measure(device: str, world: World, drill: bool, imports: Sequence[str], backend: str) -> list[Report]:
    """This rank's report and those of its peers, in order of rank."""
    import torch.distributed as dist

    from ridgeline.runtime.probe.backend import open_backend
    from ridgeline.runtime.probe.child import open_bench
    from ridgeline.runtime.probe.links import join
    from ridgeline.runtime.rank_figures import Sizes, link_figures, own_figures

    name = world.device(device)
    try:
        opened = open_backend(name, imports)
    except (RuntimeError, ImportError) as wrong:
        todo = "name a torch device that is here, or its package with --import"
        expected_text = "a device torch can use"
        raise InputError(Problem(path="--device", given=str(wrong), expected=expected_text, todo=todo)) from None
    bench = open_bench(opened, 0.0, world.rank)
    report = _report(bench, world)
    if world.ranks == 1:
        report.rounds = own_figures(bench, Sizes.of(opened.type), drill)
        return [report]
    with _environment(world):
        join(opened, 1, backend)
        try:
            report.rounds = own_figures(bench, Sizes.of(opened.type), drill, world.ranks)
            link_figures(bench, Sizes.of(opened.type), report)
            reports = [report] * world.ranks
            dist.all_gather_object(reports, report)
        finally:
            dist.destroy_process_group()
    return reports


@contextlib.contextmanager
def _environment(world: World) -> Iterator[None]:
    """What torch.distributed reads of the environment, where Slurm and not torchrun started the ranks."""
    before = {name: os.environ.get(name) for name, _ in world.environment}
    os.environ.update(dict(world.environment))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)


def _report(bench: Bench, world: World) -> Report:
    from ridgeline.runtime.probe.backend import device_name, software

    name = device_name(bench.backend)
    settings = {**collect(bench.meter.facts, software(bench.backend), world.local_ranks), "device name": name}
    return Report(host=platform.node(), type=bench.backend.type, device=name, settings=settings)


def judge(reports: Sequence[Report], nodes: int, reference: Mapping[str, float], seconds: float) -> Preflight:
    hosts = [report.host for report in reports]
    limits = CPU_LIMITS if reports[0].type == "cpu" else LIMITS
    rounds_of_rank = {f"rank {rank} ({report.host})": report.rounds for rank, report in enumerate(reports)}
    pairs = {pair: value for report in reports for pair, value in report.pairs.items()}
    figures, chips, behind, links = [], [], [], []
    for name in reports[0].rounds:
        rounds = {member: rank_rounds[name] for member, rank_rounds in rounds_of_rank.items() if name in rank_rounds}
        chips += outliers(name, rounds, PeerLimit(gap=limits[name]))
        values = {member: statistics.median(samples) for member, samples in rounds.items()}
        figures.append(_figure(name, values, reference.get(name)))
        behind += _behind(name, values, reference.get(name))
    inside = [pair for pair in pairs if hosts[pair[0]] == hosts[pair[1]]]
    between = [pair for pair in pairs if pair not in inside]
    for name in ("latency", "link"):
        for group in filter(None, (inside, between)):
            samples = {pair: pairs[pair][name] for pair in group}
            slow_ranks, single = slow_links(name, samples, PeerLimit(gap=limits[name]))
            links += [*slow_ranks, *single]
        values = {f"rank {a} and rank {b}": min(value[name]) for (a, b), value in pairs.items()}
        figures += [_figure(name, values, reference.get(name))] if values else []
    for name in reports[0].whole:
        values = {"all ranks": max(report.whole[name] for report in reports)}
        figures.append(_figure(name, values, reference.get(name)))
        behind += _behind(name, values, reference.get(name))
    rank_settings = [report.settings for report in reports]
    findings: JsonObject = {"figures": figures, "chips": chips, "links": links, "behind": behind}
    findings |= {"settings": problems(rank_settings, hosts), "warnings": warnings(rank_settings, hosts)}
    tuples = {name: tuple(values) for name, values in findings.items()}
    return Preflight(ranks=len(reports), nodes=nodes, device=reports[0].device, seconds=seconds, **tuples)


def _figure(name: str, values: Mapping[str, float], reference: float | None) -> Figure:
    worst = max(values, key=lambda member: values[member])
    middle = statistics.median(values.values())
    relative_spread = deviation(list(values.values())) / middle
    return Figure(
        name=name, median=middle, spread=relative_spread, worst=worst, value=values[worst], reference=reference
    )


def _behind(name: str, values: Mapping[str, float], reference: float | None) -> list[Outlier]:
    if reference is None:
        return []
    gaps = {member: value / reference - 1 for member, value in values.items()}
    return [
        Outlier(member=member, figure=name, value=values[member], expected=reference, gap=gap, score=0.0)
        for member, gap in gaps.items()
        if gap > REFERENCE_GAP
    ]
