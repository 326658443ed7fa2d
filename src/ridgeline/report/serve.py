"""Turn a serving prediction, or why it is slow, into a sheet of facts, and the sheet into a page."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from ridgeline.calibrate.request_log import LogErrors, LogFit
from ridgeline.core.units import format_gib, format_quantity, signed_share
from ridgeline.report.cells import DASH, Side, bar, blocks, clean, facts, grid, headed, listed, percent
from ridgeline.report.sheets.plain import plain
from ridgeline.report.sheets.serve import (
    KeptSheet,
    LogErrorsSheet,
    RequestLogSheet,
    ServedScenarioSheet,
    ServingSheet,
    WhySlowSheet,
)
from ridgeline.serving.metrics import Spread
from ridgeline.serving.serving_prediction import ServingPrediction
from ridgeline.serving.why_slow import MEANINGS, WhySlow

COLOURS = {
    "queue": "red", "prefill": "blue", "stalled": "yellow", "decode": "green", "preempted": "magenta",
    "transfer": "cyan",
}  # fmt: skip
METRICS = {"ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "ITL", "e2e_s": "E2E"}
LIMITS = {
    "max_num_seqs": "as many requests ran as may (max_num_seqs)",
    "cache": "the KV cache was full",
    "tokens": "neither seats nor cache were short: prompts waited for the steps before them",
}
BAR: tuple[Side, ...] = ("left", "right", "right", "left", "left")
MOST = 6


def serving_sheet(found: ServingPrediction) -> ServingSheet:
    """Everything a serving prediction says, in base units."""
    told, run = found.metrics, found.run
    return {
        "kind": "serving",
        "possible": True,
        "scenario": _title(found),
        "requests": told.requests,
        "duration_s": told.duration_s,
        "requests_per_s": told.requests_per_s,
        "output_tokens_per_s": told.output_tokens_per_s,
        "tokens_per_s": told.tokens_per_s,
        "tokens_per_s_per_chip": found.tokens_per_s_per_chip,
        "ttft_s": _spread(told.ttft),
        "tpot_s": _spread(told.tpot),
        "itl_s": _spread(told.itl),
        "e2e_s": _spread(told.e2e),
        "goodput": told.goodput,
        "goodput_share": found.goodput_share,
        "objective": _objective(found),
        "met": found.met,
        "time_s": dict(told.time),
        "hit_share": told.hit_share,
        "preemptions": int(run.served.preemptions.sum()),
        "steps": run.served.steps,
        "cache": [
            {
                "role": one.role,
                "tokens": one.memory.tokens,
                "blocks": one.memory.blocks,
                "block_size": one.memory.block_size,
                "weights_bytes": one.memory.weights,
                "kv_bytes": one.memory.kv_bytes,
                "kv_bytes_per_token": one.memory.kv_bytes_per_token,
            }
            for one in found.instances
        ],
        "chip_seconds": run.chip_seconds,
        "transfer_bytes": run.transfer_bytes,
        "retried": run.retried,
        "replica_changes": [[at, float(count)] for at, count in run.replicas],
        "cost_per_million_tokens_usd": found.cost_per_million_tokens_usd,
        "assumptions": list(found.assumptions),
    }


def _title(found: ServingPrediction) -> ServedScenarioSheet:
    scenario = found.scenario
    replicas: dict[str, int] = {}
    for one in found.instances:
        replicas[one.role] = replicas.get(one.role, 0) + one.count
    return {
        "name": scenario.name,
        "model": scenario.model.id,
        "system": scenario.system.name,
        "chips": found.run.chips,
        "engine": scenario.plan.engine,
        "precision": scenario.plan.precision.compute.id,
        "mesh": found.instances[0].scenario.plan.mesh.split,
        "replicas": replicas,
        "router": scenario.plan.serving.router,
    }


def _spread(spread: Spread) -> dict[str, float]:
    return {"mean": spread.mean, **{f"p{one:g}": value for one, value in spread.percentiles.items()}}


def _objective(found: ServingPrediction) -> list[KeptSheet]:
    percentile = found.scenario.workload.objective.percentile  # type: ignore[union-attr]
    return [
        {"metric": name, "percentile": percentile, "limit_s": one.limit, "found_s": one.found, "met": one.met}
        for name, one in found.kept.items()
    ]


# ---- the page of a prediction


def draw_serving(sheet: ServingSheet, console: Console) -> None:
    """Print the page of a serving prediction."""
    console.print(blocks(_headline(sheet), _metrics(sheet), _where(sheet), _fleet(sheet), _assumed(sheet)))


def _about(sheet: ServedScenarioSheet) -> Text:
    mesh = " ".join(f"{axis}={degree}" for axis, degree in sheet["mesh"].items()) or "one chip"
    replicas = ", ".join(
        f"{count} {'replica' if role == 'both' else role}{'s' * (count > 1 and role == 'both')}"
        for role, count in sheet["replicas"].items()
    )
    what = f"{sheet['model']} on {sheet['system']}: {replicas} of {mesh}, {sheet['precision']}, {sheet['engine']}"
    return clean(what)


def _headline(sheet: ServingSheet) -> Iterator[RenderableType]:
    yield Text.assemble((_about(sheet["scenario"]).plain, "bold"))
    rate = f"{sheet['requests']:,} requests in {format_quantity(sheet['duration_s'], 's')}, "
    rate += f"{sheet['requests_per_s']:.2f}/s; {sheet['output_tokens_per_s']:,.0f} output tokens/s, "
    yield Text(rate + f"{sheet['tokens_per_s_per_chip']:,.0f} a chip")
    for one in sheet["objective"]:
        word, colour = ("kept", "green") if one["met"] else ("missed", "red")
        said = f"{one['metric'].upper()} p{one['percentile']:g} {format_quantity(one['found_s'], 's')}"
        yield Text.assemble((word, colour), f"  {said}, limit {format_quantity(one['limit_s'], 's')}")
    if not sheet["met"]:
        yield Text("`ridgeline explain` says why, and what would help", style="dim")
    if sheet["goodput"] is not None:
        yield Text(f"goodput {sheet['goodput']:.2f} requests/s, {percent(sheet['goodput_share'])} of all")


def _metrics(sheet: ServingSheet) -> Iterator[RenderableType]:
    heads = list(sheet["ttft_s"])
    table = headed(("", *heads), right=heads)
    for key, name in METRICS.items():
        values = sheet[key]  # type: ignore[literal-required]
        table.add_row(name, *(format_quantity(values[head], "s") for head in heads))
    yield table


def _where(sheet: ServingSheet) -> Iterator[RenderableType]:
    yield Text("where the time of a request goes", style="bold")
    yield _bars(sheet["time_s"])


def _bars(parts: dict[str, float]) -> RenderableType:
    table = grid(*BAR)
    whole = sum(parts.values()) or 1.0
    for name, seconds in parts.items():
        if seconds > 0:
            share = seconds / whole
            cells = (format_quantity(seconds, "s"), percent(share), bar(share, COLOURS[name]))
            table.add_row(name, *cells, Text(MEANINGS[name], style="dim"))
    return table


def _fleet(sheet: ServingSheet) -> Iterator[RenderableType]:
    cost = sheet["cost_per_million_tokens_usd"]
    cache = "; ".join(
        f"{one['tokens']:,} tokens{'' if one['role'] == 'both' else ' of ' + one['role']}, "
        f"{format_gib(one['kv_bytes'])} beside {format_gib(one['weights_bytes'])} of weights"
        for one in sheet["cache"]
    )
    yield facts(
        ("cache of a replica", cache),
        ("prefix hits", percent(sheet["hit_share"])),
        ("preemptions", f"{sheet['preemptions']:,}"),
        ("cache moved", format_quantity(sheet["transfer_bytes"], "B") if sheet["transfer_bytes"] else ""),
        ("sent again", f"{sheet['retried']:,} after a failure" if sheet["retried"] else ""),
        ("replicas", _changes(sheet)),
        ("cost", f"${cost:,.2f} per million output tokens" if cost is not None else ""),
    )


def _changes(sheet: ServingSheet) -> str:
    changes = sheet["replica_changes"]
    if len(changes) < 2:
        return ""
    counts = [int(count) for _, count in changes]
    return f"{min(counts)} to {max(counts)}, {len(changes) - 1} changes"


def _assumed(sheet: ServingSheet) -> Iterator[RenderableType]:
    yield from listed("assumed", sheet["assumptions"], most=MOST)


# ---- why it is slow


def why_slow_sheet(found: WhySlow) -> WhySlowSheet:
    """Everything an explanation says."""
    return {
        "kind": "why slow",
        "scenario": _title(found.prediction),
        "metric": found.metric,
        "percentile": found.percentile,
        "found_s": found.found,
        "met": found.prediction.met,
        "objective": _objective(found.prediction),
        "cause": found.cause,
        "slow_s": found.slow,
        "usual_s": found.usual,
        "slowest": [plain(one) for one in found.slowest],
        "queue": plain(found.queue) if found.queue else None,
        "remedies": [
            {"change": one.change, "found_s": one.found, "goodput": one.goodput, "chips": one.chips}
            for one in found.remedies
        ],
        "least_s": found.least,
        "kept_rate": found.kept_rate,
    }


def draw_why_slow(sheet: WhySlowSheet, console: Console) -> None:
    """Print why slow requests are slow, and what would help."""
    console.print(blocks(_story(sheet), _compared(sheet), _slowest(sheet), _remedies(sheet), _nearest(sheet)))


def _story(sheet: WhySlowSheet) -> Iterator[RenderableType]:
    name = f"{sheet['metric'].upper()} p{sheet['percentile']:g}"
    yield Text.assemble((_about(sheet["scenario"]).plain, "bold"))
    found = format_quantity(sheet["found_s"], "s")
    cause = sheet["cause"]
    yield Text.assemble(f"{name} is {found}, most of all for ", (cause, COLOURS[cause]), f": {MEANINGS[cause]}")
    queue = sheet["queue"]
    if queue is not None:
        when = f"from {queue['began_s']:.1f} s to {queue['peak_s']:.1f} s on replica {queue['replica']}"
        yield Text(f"the queue grew to {queue['peak']:,} requests {when}; {LIMITS[queue['limit']]}")


def _compared(sheet: WhySlowSheet) -> Iterator[RenderableType]:
    table = headed(("part", "slow requests", "usual ones", "more"), right=("slow requests", "usual ones", "more"))
    for part, seconds in sheet["slow_s"].items():
        usual = sheet["usual_s"][part]
        if seconds > 0 or usual > 0:
            cells = [format_quantity(value, "s") for value in (seconds, usual, max(seconds - usual, 0.0))]
            table.add_row(Text(part, style=COLOURS[part]), *cells)
    yield table


def _slowest(sheet: WhySlowSheet) -> Iterator[RenderableType]:
    heads = ("sent", "took", "prompt", "output", "replica")
    table = headed(("slowest", *heads, "mostly"), right=heads)
    for one in sheet["slowest"]:
        most = max(one["parts"], key=lambda part: one["parts"][part])
        share = one["parts"][most] / (sum(one["parts"].values()) or 1.0)
        cells = (f"{one['sent_s']:.1f} s", format_quantity(one["seconds"], "s"))
        counts = (f"{one['prompt_tokens']:,}", f"{one['output_tokens']:,}", str(one["replica"]))
        table.add_row(clean(one["id"][:24]), *cells, *counts, f"{most} {percent(share)}")
    yield table


def _remedies(sheet: WhySlowSheet) -> Iterator[RenderableType]:
    if not sheet["remedies"]:
        yield Text("none of the changes that were simulated helps", style="yellow")
        return
    name = f"{sheet['metric'].upper()} p{sheet['percentile']:g}"
    table = headed(("would help (simulated)", name, "goodput", "chips"), right=(name, "goodput", "chips"))
    for one in sheet["remedies"][:MOST]:
        good = DASH if one["goodput"] is None else f"{one['goodput']:.2f}/s"
        table.add_row(clean(f"--set {one['change']}"), format_quantity(one["found_s"], "s"), good, str(one["chips"]))
    yield table


def _nearest(sheet: WhySlowSheet) -> Iterator[RenderableType]:
    """What can be met where the objective is not."""
    missed = [one for one in sheet["objective"] if not one["met"]]
    for one in missed:
        least = sheet["least_s"][one["metric"]]
        name = f"{one['metric'].upper()} p{one['percentile']:g}"
        if one["limit_s"] < least:
            said = (
                f"{name} below {format_quantity(least, 's')} cannot be met at any load: so long takes a request alone"
            )
            yield Text(said, style="red")
        yield Text(f"{name}: the nearest that this deployment keeps is {format_quantity(one['found_s'], 's')}")
    if sheet["kept_rate"] is not None:
        yield Text(f"every limit is kept up to {sheet['kept_rate']:.2f} requests/s of this load")
    elif sheet["objective"] and missed:
        yield Text("no rate of this load keeps every limit on this deployment", style="red")


# ---- request logs


def request_log_sheet(found: LogFit) -> RequestLogSheet:
    """Five numbers of a log, and what they are worth."""
    return {
        "kind": "request log",
        "log": found.log.name,
        "version": found.log.version,
        "ranks": found.log.ranks,
        "own": found.own,
        "numbers": plain(found.cost),
        "errors": _log_errors(found.errors),
        "held_out": _log_errors(found.held_out) if found.held_out else None,
    }


def _log_errors(errors: LogErrors) -> LogErrorsSheet:
    return {
        "requests": errors.requests,
        "e2e_mape": errors.e2e_mape,
        "e2e_mean": errors.e2e_mean,
        "ttft": dict(errors.ttft),
    }


def draw_request_log(sheet: RequestLogSheet, console: Console) -> None:
    """Print what five numbers of a log are worth."""
    console.print(
        Text.assemble(clean(f"{sheet['log']}: {sheet['errors']['requests']:,} measured requests"), style="bold")
    )
    own = "from this log" if sheet["own"] else "from another log"
    console.print(
        Text(f"five numbers of a step {own}, the scheduler of vLLM {sheet['version'] or '(newest)'}", style="dim")
    )
    console.print(facts(*((name, format_quantity(value, "s")) for name, value in sheet["numbers"].items())))
    rows = {"all requests": sheet["errors"], "the later half, numbers of the earlier": sheet["held_out"]}
    heads = ("E2E of a request", "mean E2E", *(f"TTFT {name}" for name in sheet["errors"]["ttft"]))
    table = headed(("residuals", *heads), right=heads)
    for name, errors in rows.items():
        if errors is not None:
            firsts = [signed_share(value, unit=" %") for value in errors["ttft"].values()]
            table.add_row(name, percent(errors["e2e_mape"]), signed_share(errors["e2e_mean"], unit=" %"), *firsts)
    console.print(table)
