"""Write the tables of docs/concepts/published-runs.md: runs that papers tell of, predicted, and planned again.

    python -m tools docs published            rewrite the page: half a minute
    python -m tools docs published --check    fail when the first two tables no longer say what is predicted and found
    python -m tools docs published --json     everything as JSON; nothing is written
    python -m tools docs published --where source=sc21    some of the runs, printed

`ridgeline validate published` tells the errors of the same runs. It stands here because it needs measured rows and the
search at once: those two floors do not import each other.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.calibrate.truth.rows import Skipped, where
from ridgeline.calibrate.validate import PublishedRun, published_runs, validate
from ridgeline.calibrate.validation import ValidationCase
from ridgeline.core.units import format_gib, signed_share
from ridgeline.plan.plan import plan_words
from ridgeline.plan.scenario import Scenario
from ridgeline.search.training.gains import OtherEngine, other_engines
from ridgeline.search.training.plan_search import Search, find_plan
from ridgeline.sim import Prediction, predict, scenario_headroom
from tools.pages import DOCS, replace_block, write_or_check

PAGE = DOCS / "concepts" / "published-runs.md"
UNITS = {
    "step_time_s": "s",
    "tokens_per_s_per_gpu": "tokens/s/chip",
    "tflops_per_gpu": "TFLOP/s/chip",
    "mfu_pct": "% MFU",
}
HAIR = 1e-9  # of memory: the search rounds peaks
NAMED = 3  # other engines in the last table
SINCE = 2024  # year from which runs are asked what other engines would gain: older ones had no others


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPublishedRun:
    """A published run with its predictions and what the search finds.

    case     its prediction, without its own configuration in the fit
    own      the authors' plan priced with the shipped parameters, as the search prices all others
    search   what the search found for the same model, system, batch, format, engine and switches
    """

    run: PublishedRun
    scenario: Scenario
    case: ValidationCase
    own: Prediction
    search: Search

    @property
    def best(self) -> Prediction | None:
        """The fastest plan that was found."""
        return self.search.plans[0] if self.search.plans else None

    @property
    def name(self) -> str:
        """Model, system and where from."""
        row = self.run.row
        return f"{row['model_name']} on {row['gpus']} {self.scenario.system.chip.id} (`{row.id}`)"


def price_runs(runs: Sequence[PublishedRun]) -> list[PricedPublishedRun]:
    """Runs with their predictions and what the search finds; those that cannot be predicted are left out."""
    cases = {case.row.id: case for case in validate("published").cases}
    priced_runs: list[PricedPublishedRun] = []
    for run in runs:
        scenario = run.scenario
        authors_plan = None if isinstance(scenario, Skipped) else predict(scenario)
        if isinstance(scenario, Skipped) or not isinstance(authors_plan, Prediction) or run.row.id not in cases:
            continue
        search = find_plan(scenario, most=1, headroom=allowed_headroom(authors_plan))
        priced_runs.append(
            PricedPublishedRun(run=run, scenario=scenario, case=cases[run.row.id], own=authors_plan, search=search)
        )
    return priced_runs


def allowed_headroom(own: Prediction) -> float:
    """The share of memory a plan must leave free: as always, or what the authors' plan leaves where that is less."""
    usual = scenario_headroom(own.scenario).share
    free_share = 1 - own.memory.peak_bytes / own.memory.capacity_bytes - HAIR
    return max(0.0, min(usual, free_share)) if own.fits else usual


def predicted_table(runs: Sequence[PricedPublishedRun]) -> str:
    """Published and predicted, beside each other."""
    head = (
        "run",
        "published plan",
        "engine",
        "published",
        "step",
        "predicted",
        "ratio",
        "interval",
        "memory",
    )
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for priced_run in runs:
        row, case, memory = priced_run.run.row, priced_run.case, priced_run.own.memory
        figure = f"{float(row['measured_value']):g} {UNITS[row['measured_metric']]}"
        cells = (
            priced_run.name + (" *" if case.cross_validated else ""), plan_words(priced_run.scenario.plan),
            priced_run.scenario.engine.id, figure, f"{case.measured_s:.3g} s", f"{case.predicted_s:.3g} s",
            f"{case.predicted_s / case.measured_s:.2f}",
            f"{case.low_s:.3g} to {case.high_s:.3g}" + ("" if case.covered else ": **outside**"),
            f"{format_gib(memory.peak_bytes)} of {format_gib(memory.capacity_bytes)}"
            + ("" if priced_run.own.fits else ": **does not fit**"),
        )  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    off = [abs(priced_run.case.residual) for priced_run in runs]
    inside = sum(priced_run.case.covered for priced_run in runs)
    fits = sum(priced_run.own.fits for priced_run in runs)
    if runs:
        mean = sum(off) / len(off)
        rows += ["", f"{len(runs)} runs: mean error {mean:.1%}, {inside} inside their interval, {fits} said to fit."]
    return "\n".join(rows)


def planned_table(runs: Sequence[PricedPublishedRun]) -> str:
    """The authors' plan and what the search finds under the same engine, both priced by the same parameters."""
    rows = [
        "| run | authors' plan, priced | `plan` finds | step | gain | plans that fit |",
        "|---|---|---|---|---|---|",
    ]
    for priced_run in runs:
        best = priced_run.best
        best_cells = ("nothing that fits", "–", "–") if best is None else (
            plan_words(best.scenario.plan), f"{best.step_time_s:.3g} s", gain(priced_run.own, best)
        )  # fmt: skip
        cells = (
            f"`{priced_run.run.row.id}`",
            f"{priced_run.own.step_time_s:.3g} s",
            *best_cells,
            f"{priced_run.search.swept.feasible:,}",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def gain(own: Prediction, best: Prediction) -> str:
    """Throughput over the authors' plan's, less one."""
    return signed_share(own.step_time_s / best.step_time_s - 1)


def engines_of_runs(runs: Sequence[PricedPublishedRun]) -> list[tuple[PricedPublishedRun, tuple[OtherEngine, ...]]]:
    """What other engines would gain, for runs recent enough to have had them."""
    recent = [
        priced_run
        for priced_run in runs
        if int(priced_run.run.row["year"] or 0) >= SINCE and priced_run.best is not None
    ]
    return [
        (priced_run, other_engines(priced_run.search, priced_run.best))
        for priced_run in recent
        if priced_run.best is not None
    ]


def engines_table(found: Sequence[tuple[PricedPublishedRun, tuple[OtherEngine, ...]]]) -> str:
    """The fastest other engines of each run."""
    rows = ["| run | engine | best | other engines |", "|---|---|---|---|"]
    for priced_run, engines in found:
        words = [
            f"{rival.engine.id} {rival.prediction.step_time_s:.3g} s ({signed_share(rival.gain)}, {rival.runs} runs)"
            for rival in engines[:NAMED]
        ]
        step = f"{priced_run.best.step_time_s:.3g} s" if priced_run.best else "–"
        name, engine = priced_run.run.row.id, priced_run.scenario.engine.id
        rows.append(f"| `{name}` | {engine} | {step} | {', '.join(words) or 'none'} |")
    return "\n".join(rows)


def sources(runs: Sequence[PricedPublishedRun]) -> str:
    """Where runs are described, how their figures count, and what was settled or assumed; equal rows as one."""
    ids: dict[tuple[str, str, str], list[str]] = {}
    assumers: dict[str, list[str]] = {}
    for priced_run in runs:
        row = priced_run.run.row
        notes = [
            note for note in priced_run.scenario.assumptions if "blank in the table" in note or "unknown in the" in note
        ]
        for note in notes:
            assumers.setdefault(note, []).append(f"`{row.id}`")
        where_from = f"{row['source']}, {row['source_url_or_repo_path']}"
        ids.setdefault((where_from, row["flops_convention"], priced_run.run.why or "–"), []).append(f"`{row.id}`")
    rows = ["| runs | source | its figure | settled |", "|---|---|---|---|"]
    rows += [f"| {', '.join(names)} | {' | '.join(cells)} |" for cells, names in ids.items()]
    rows += ["", "Assumed:", "", *(f"- {note}: {', '.join(names)}" for note, names in assumers.items())]
    return "\n".join(rows)


def as_json(runs: Sequence[PricedPublishedRun]) -> str:
    """Every run as one object; seconds, bytes and shares of 1."""
    tables = [
        {
            "id": priced_run.run.row.id,
            "model": priced_run.scenario.model.id,
            "system": priced_run.scenario.system.name,
            "engine": priced_run.scenario.engine.id,
            "plan": plan_words(priced_run.scenario.plan),
            "fitted": priced_run.run.is_fitted,
            "published_s": priced_run.case.measured_s,
            "predicted_s": priced_run.case.predicted_s,
            "low_s": priced_run.case.low_s,
            "high_s": priced_run.case.high_s,
            "inside": priced_run.case.covered,
            "peak_memory_bytes": priced_run.own.memory.peak_bytes,
            "capacity_bytes": priced_run.own.memory.capacity_bytes,
            "fits": priced_run.own.fits,
            "priced_s": priced_run.own.step_time_s,
            "found_s": priced_run.best.step_time_s if priced_run.best else None,
            "found": plan_words(priced_run.best.scenario.plan) if priced_run.best else None,
            "feasible": priced_run.search.swept.feasible,
        }
        for priced_run in runs
    ]
    return json.dumps(tables, indent=1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--where", action="append", default=[], metavar="COLUMN=VALUE")
    parser.add_argument("--json", action="store_true")


def run(arguments: argparse.Namespace) -> int:
    """Write or check the page, or print some runs."""
    chosen_ids = {row.id for row in where([run.row for run in published_runs()], arguments.where)}
    runs = price_runs([run for run in published_runs() if run.row.id in chosen_ids])
    if arguments.json:
        print(as_json(runs))
        return 0
    tables = {"predicted": predicted_table(runs), "planned": planned_table(runs), "sources": sources(runs)}
    if arguments.where:
        print("\n\n".join(tables.values()))
        return 0
    if not arguments.check:
        tables["engines"] = engines_table(engines_of_runs(runs))
    text = PAGE.read_text(encoding="utf-8")
    for name, table in tables.items():
        text = replace_block(text, f"published {name}", table)
    return write_or_check(PAGE, text, check=arguments.check, command="docs published")
