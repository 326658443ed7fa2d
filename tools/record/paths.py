"""Mine and check the paths of `sim/closed_form/longest_paths.txt`: the longest chains of waits through a schedule.

    python -m tools record paths --check [--plans 4000]    no path is longer than a run, and claims hold
    python -m tools record paths 1f1b                      mine a schedule's paths anew and print them as table lines

The seconds of a run are the longest of its paths, and a path's seconds are linear in the stage times. So the slopes of
`run_events`' makespan with respect to the times are the counts of its longest path; their sum, each times its time,
must be the makespan again (where it is not, two paths were too close and the sample is dropped). Mining

    1. takes the slopes for random stage times at many sizes (p, m, v)
    2. solves for integer coefficients of p, m, v, … that give the counts of one sample at many sizes: a family
    3. keeps a family for the widest range of sizes at which no run, of times far outside the usual too, is shorter
    4. chooses families until no run exceeds the longest chosen path by more than the tolerance

The shipped tables were chosen from several such runs (other seeds, ranges of sizes and tolerances), so mining does not
print them letter by letter. What is claimed of them is what `--check` checks.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.plan.schedules import SCHEDULES, ScheduleTable, build
from ridgeline.sim.closed_form import schedule_time as formula
from ridgeline.sim.closed_form.schedule_time import PathWork, PhaseSeconds, closed_form
from ridgeline.sim.events.event_loop import StageWork
from tools.pages import ROOT

sys.path.insert(0, str(ROOT / "tests"))
from pipeline_oracle import run_events

Floats = NDArray[np.float64]
Size = tuple[int, int, int]  # p, m, v
SPLIT = ("zbv", "dualpipe-v", "zero-bubble-h1")


class Times(NamedTuple):
    """Stage times of one plan: 3 x 3 of first, inner, last x F, I, W; a send, whether it blocks, and a pair's gain."""

    stages: Floats
    send: float
    blocks: bool
    gain: float


def seconds(table: ScheduleTable, times: Times) -> float:
    """Makespan of a run."""
    return run_events(table, _work(table, times), send_blocks=times.blocks, overlapped_gain=times.gain).makespan_s


def _work(table: ScheduleTable, times: Times) -> list[StageWork]:
    first, inner, last = (
        StageWork(forward_s=f, backward_input_s=i, backward_weight_s=w, send_s=times.send)
        for f, i, w in times.stages.tolist()
    )
    many = table.stages * table.chunks
    return [first] if many == 1 else [first, *[inner] * (many - 2), last]


def predicted(name: str, size: Size, times: Times) -> float:
    """The closed form of the same."""
    first, inner, last = (
        PhaseSeconds(forward_s=f, backward_input_s=i, backward_weight_s=w) for f, i, w in times.stages.tolist()
    )
    work = PathWork(first=first, inner=inner, last=last, send_s=times.send, overlapped_gain=times.gain)
    p, m, v = size
    return float(closed_form(name, stages=p, chunks=v, microbatches=m, work=work, send_blocks=times.blocks))


# -- random plans -----------------------------------------------------------------------------------------------------


def usual(rng: np.random.Generator, name: str) -> Times:
    """I and W 0.5 to 2 times F, the first and the last stage up to 30 % heavier, sends up to 20 % of F."""
    inner = np.array([1.0, rng.uniform(0.5, 2), rng.uniform(0.5, 2)])
    ends = 1 + 0.3 * (rng.random((2, 3)) if rng.random() < 0.5 else np.repeat(rng.random((2, 1)), 3, axis=1))
    stages = np.stack([inner * ends[0], inner, inner * ends[1]])
    gain = float(rng.choice([0.0, rng.uniform(0, 0.3)])) if name == "dualpipe-v" else 0.0
    return Times(stages, float(rng.choice([0.0, 0.2, rng.uniform(0, 0.2)])), bool(rng.random() < 0.5), gain)


def wild(rng: np.random.Generator, name: str) -> Times:
    """Anything from nothing to several times the rest."""
    stages = np.abs(rng.standard_normal((3, 3))) * (rng.random((3, 3)) < 0.5)
    stages += 1e-3
    gain = float(rng.uniform(0, 0.3)) if name == "dualpipe-v" else 0.0
    return Times(stages, float(np.abs(rng.standard_normal()) * (rng.random() < 0.5)), bool(rng.random() < 0.5), gain)


def a_size(rng: np.random.Generator, name: str, most: int = 8) -> Size:
    """p 1 to 8, m 1 to 6 p, v 2 to 4 where it may vary."""
    p, kind = int(rng.integers(1, most + 1)), SCHEDULES[name]
    v = int(rng.integers(2, 5)) if kind.most_chunks is None else kind.fewest_chunks
    m = int(rng.integers(1, int(rng.choice([p, 2 * p, 6 * p])) + 1))
    m = {"interleaved": p * (1 + m % 6), "dualpipe-v": 2 * p + m - 1}.get(name, m)
    return p, m, v


# -- checking ---------------------------------------------------------------------------------------------------------


class Checked(NamedTuple):
    """How the closed form of a schedule stands against runs, in % of them."""

    name: str
    over: float
    worst: float
    mean: float


def check(name: str, plans: int, seed: int = 17) -> Checked:
    """The largest excess over a run, usual or wild, and the worst and the mean shortfall over usual plans."""
    rng, found, over = np.random.default_rng(seed), [], -np.inf
    for number in range(plans + plans // 2):
        size = a_size(rng, name, 8 if number < plans else 12)
        times = usual(rng, name) if number < plans else wild(rng, name)
        p, m, v = size
        run = seconds(build(name, stages=p, microbatches=m, chunks=v), times)
        residual = 100 * (predicted(name, size, times) / run - 1)
        over = max(over, residual)
        if number < plans:
            found.append(-residual)
    return Checked(name, over, max(found), sum(found) / len(found))


def claimed() -> Mapping[str, tuple[float, float]]:
    """Worst and mean shortfall by schedule, as the closed form's docstring states them."""
    lines = (formula.__doc__ or "").splitlines()
    head = next(place for place, line in enumerate(lines) if line.split()[:2] == ["gpipe", "1f1b"])
    worst, mean = (re.findall(r"\d+\.\d+", lines[head + row]) for row in (1, 2))
    return {name: (float(a), float(b)) for name, a, b in zip(lines[head].split(), worst, mean, strict=True)}


def problems(found: Checked) -> Iterator[str]:
    """What of the claims does not hold; figures are stated to a tenth."""
    worst, mean = claimed()[found.name]
    if found.over > 1e-6:
        yield f"{found.name}: a path is {found.over:.4f} % longer than a run"
    if found.worst > worst + 0.05:
        yield f"{found.name}: {found.worst:.2f} % short of a run, {worst} % claimed"
    if found.mean > mean + 0.05:
        yield f"{found.name}: {found.mean:.2f} % short in the mean, {mean} % claimed"


# -- mining -----------------------------------------------------------------------------------------------------------


def slopes(table: ScheduleTable, times: Times) -> Floats | None:
    """Counts of the longest path: F, I, W by stage, overlapped and blocking sends, F and B inside pairs by stage."""
    step, whole = 1e-6, seconds(table, times)

    def slope(moved: Times, base: float) -> float:
        return (seconds(table, moved) - base) / step

    def by_stage(at: Times) -> Floats:
        base, found = seconds(table, at), np.zeros((3, 3))
        for place in np.ndindex(3, 3):
            stages = at.stages.copy()
            stages[place] += step
            found[place] = slope(at._replace(stages=stages), base)
        return found

    bare = by_stage(times)
    sends = slope(times._replace(send=times.send + step), whole)
    pairs = np.zeros((3, 3))
    if table.name == "dualpipe-v":
        more = times._replace(gain=times.gain + 1e-4)
        pairs = np.round((bare - by_stage(more)) / 1e-4)
        bare = bare + times.gain * pairs
    counts = np.round(np.concatenate([bare.T.ravel(), [sends * (not times.blocks), sends * times.blocks]]))
    inside = np.concatenate([pairs[:, 0], pairs[:, 1]])
    saved = times.gain * float((pairs * times.stages).sum())
    priced = float(counts[:9] @ times.stages.T.ravel()) + float(counts[9:].sum()) * times.send - saved
    if abs(priced / whole - 1) > 1e-6 or counts.min() < 0:
        return None
    return np.concatenate([counts, inside]) if table.name == "dualpipe-v" else counts


def sizes_for(name: str) -> list[Size]:
    """Sizes to mine at."""
    found: list[Size] = []
    for p in (2, 3, 4, 5, 7):
        if name == "interleaved":
            found += [(p, p * turns, v) for turns in (1, 2, 3, 5) for v in (2, 3)]
            continue
        ms = {*range(1, 2 * p + 3), 3 * p, 3 * p + 1, 4 * p + p // 2, 5 * p}
        found += [(p, m, SCHEDULES[name].fewest_chunks) for m in sorted(ms) if name != "dualpipe-v" or m >= 2 * p]
    return found


def symbols_for(name: str) -> tuple[tuple[str, ...], ...]:
    """Sets of letters that counts may be linear in."""
    if name == "interleaved":
        return (("", "p", "m", "pv", "mv"), ("", "p", "v", "m", "pv", "mv"))
    halves = (("", "p", "m", "h"), ("", "p", "m", "q")) if name in SPLIT else ()
    return (("", "p", "m"), ("", "p", "m", "L"), ("", "p", "m", "M"), *halves)


def letters(symbols: Sequence[str], sizes: Sequence[Size]) -> Floats:
    """The value of each letter at each size."""
    p, m, v = (np.array(column) for column in zip(*sizes, strict=True))
    given = formula._Size(p=p, m=m, v=v)
    columns = [np.broadcast_to(formula._SYMBOLS[symbol](given), p.shape) for symbol in symbols]
    return np.stack(columns, axis=1).astype(np.float64)


def holds_all(size: Size) -> bool:
    """Any size."""
    return bool(size)


Family = tuple[tuple[str, ...], tuple[tuple[float, ...], ...]]


def families(name: str, sizes: Sequence[Size], counts: Mapping[tuple[int, int], Floats], samples: int) -> list[Family]:
    """Integer coefficients that give the counts of one sample at several sizes, the most frequent first."""
    rng, found = np.random.default_rng(0), dict[Family, int]()
    regions = [holds_all, *(lambda size, c=c: holds(c, size) for c in ("m<=p-1", "m>=p m<=2p-1", "m>=p", "m>=2p"))]
    for sample in range(samples):
        for region in regions:
            places = [g for g, size in enumerate(sizes) if (g, sample) in counts and region(size)]
            for symbols in symbols_for(name):
                if len(places) < len(symbols) + 2:
                    continue
                left = letters(symbols, [sizes[g] for g in places])
                right = np.array([counts[g, sample] for g in places])
                for _ in range(40):
                    chosen = rng.choice(len(places), len(symbols), replace=False)
                    if abs(np.linalg.det(left[chosen])) < 1e-6:
                        continue
                    solved = np.linalg.solve(left[chosen], right[chosen])
                    whole = np.round(solved)
                    if np.abs(solved - whole).max() > 1e-6 or np.abs(whole).max() > 9:
                        continue
                    hits = int((np.abs(left @ whole - right).max(1) < 1e-6).sum())
                    if hits >= len(symbols) + 1:
                        key = symbols, tuple(map(tuple, whole.tolist()))
                        found[key] = found.get(key, 0) + hits
    return sorted(found, key=lambda family: -found[family])


CONDITIONS = (
    "-",
    "p>=3",
    "m>=p",
    "m>=p+1",
    "p>=3 m>=p",
    "m>=2p",
    "m>=2p-1",
    "m<=p",
    "m<=p-1",
    "m<=2p-2 m>=p+1",
    "p<=2",
)


def holds(condition: str, size: Size) -> bool:
    p, m, _ = size
    return all(
        one + of_p * p + of_m * m >= 0
        for word in condition.split() if word != "-"
        for one, of_p, of_m in formula._rules(word)
    )  # fmt: skip


def text(family: Family) -> str:
    """A family's counts as a line of the table."""
    symbols, table = family

    def word(column: Sequence[float]) -> str:
        made = ""
        for symbol, value in zip(symbols, column, strict=True):
            if value:
                made += f"{value:+.0f}" if not symbol else {1: "+", -1: "-"}.get(int(value), f"{value:+.0f}") + symbol
        return made.removeprefix("+") or "0"

    words = [word(column) for column in zip(*table, strict=True)]
    return " ".join(words[:11]) + ("\n    " + " ".join(words[11:]) if len(words) > 11 else "")


def mine(name: str, samples: int, tolerance: float) -> list[str]:
    """Table lines that cover runs of random times to within the tolerance, or as far as the families found do."""
    rng, sizes = np.random.default_rng(3), sizes_for(name)
    drawn = [usual(rng, name) for _ in range(samples)]
    odd = [wild(rng, name) for _ in range(12)]
    tables = [build(name, stages=p, microbatches=m, chunks=v) for p, m, v in sizes]
    counts: dict[tuple[int, int], Floats] = {}
    for place, table in enumerate(tables):
        for sample, times in enumerate(drawn):
            row = slopes(table, times)
            if row is not None:
                counts[place, sample] = row
    print(f"{name}: {len(counts)} longest paths at {len(sizes)} sizes", file=sys.stderr)
    listed = families(name, sizes, counts, samples)[:3000]
    given = [*drawn, *odd]
    runs = np.array([[seconds(table, times) for times in given] for table in tables])
    prices = np.array([_prices(name, times) for times in given])
    print(f"{name}: {len(listed)} families", file=sys.stderr)
    covers, lines = [], []
    for family in listed:
        passed = letters(family[0], sizes) @ np.array(family[1])
        share = (passed @ prices.T) / runs
        fits = (share.max(1) <= 1 + 1e-7) & (passed[:, :11].min(1) >= 0)
        allowed = [(c, [holds(c, size) for size in sizes]) for c in CONDITIONS]
        wide = [(sum(at), c, np.array(at)) for c, at in allowed if any(at) and fits[at].all()]
        if wide:
            _, condition, at = max(wide, key=lambda entry: entry[0])
            covers.append(np.where(at[:, None], share, 0.0)[:, :samples].ravel())
            lines.append(f"{condition} | {text(family)}")
    return [lines[place] for place in _cover(np.array(covers), tolerance)]


def _prices(name: str, times: Times) -> Floats:
    sends = [times.send * (not times.blocks), times.send * times.blocks]
    made = np.concatenate([times.stages.T.ravel(), sends])
    if name != "dualpipe-v":
        return made
    forward, backward = times.stages[:, 0], times.stages[:, 1] + times.stages[:, 2]
    return np.concatenate([made, -times.gain * forward, -times.gain * backward])


def _cover(covers: Floats, tolerance: float) -> list[int]:
    """Lines chosen one by one, each the one that leaves least uncovered, until nothing is or nothing helps."""
    chosen: list[int] = []
    reached = np.zeros(covers.shape[1])
    while reached.min() < 1 - tolerance:
        left = np.clip(1 - tolerance - np.maximum(covers, reached), 0, None)
        best = int((left**2).sum(1).argmin())
        if best in chosen:
            break
        chosen.append(best)
        reached = np.maximum(reached, covers[best])
    print(f"covered to {100 * (1 - reached.min()):.2f} % at worst by {len(chosen)} lines", file=sys.stderr)
    return chosen


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("schedule", nargs="?", choices=[name for name in SCHEDULES if name != "gpipe"])
    parser.add_argument("--check", action="store_true", help="check the shipped tables")
    parser.add_argument("--plans", type=int, default=300, help="random plans by schedule to check with")
    parser.add_argument("--samples", type=int, default=40, help="random times to mine with")
    parser.add_argument("--tolerance", type=float, default=0.01)


def run(arguments: argparse.Namespace) -> int:
    """Print the mined paths of a schedule, or check the shipped ones."""
    if arguments.schedule:
        print("\n".join(mine(arguments.schedule, arguments.samples, arguments.tolerance)))
        return 0
    wrong: list[str] = []
    for name in SCHEDULES:
        found = check(name, arguments.plans)
        print(
            f"{name:<15} worst {found.worst:5.2f} %   mean {found.mean:5.3f} %   longest over a run {found.over:.1e} %"
        )
        wrong += problems(found)
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0
