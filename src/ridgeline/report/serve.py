"""Draw a serving prediction on the terminal, why it is slow, and the fit of a log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.calibrate.request_log import METRICS as EXPLAINED_METRICS
from ridgeline.calibrate.request_log import BenchExplanation, LogFit
from ridgeline.core.units import format_gib, format_quantity, signed_quantity, signed_share
from ridgeline.hardware.what_if import system_title
from ridgeline.report.cells import DASH, bar, bar_table, blocks, clean, facts, grid, header_table, list_lines, percent
from ridgeline.serving import MEANINGS, ServedTitle, ServingPrediction, WhySlow
from ridgeline.serving.measured import BenchAnalysis, BenchReport

COLOURS = {
    "queue": "red", "prefill": "blue", "stalled": "yellow", "decode": "green", "preempted": "magenta",
    "transfer": "cyan",
}  # fmt: skip
METRICS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E"}
LIMITS = {
    "max_num_seqs": "as many requests ran as may (max_num_seqs)",
    "cache": "the KV cache was full",
    "tokens": "neither seats nor cache were short: prompts waited for the steps before them",
}
MOST = 6


# ---- the page of a prediction


def draw_serving(prediction: ServingPrediction, console: Console) -> None:
    """Print the page of a serving prediction."""
    assumed = list_lines("assumed", prediction.assumptions, most=MOST)
    where = (Text("where the time of a request goes", style="bold"), _bars(prediction.metrics.time))
    heads, rows = metric_rows(prediction)
    console.print(
        blocks(
            _headline(prediction), [header_table(("", *heads), rows, right=heads)], where, [_fleet(prediction)], assumed
        )
    )


def _about(title: ServedTitle) -> Text:
    mesh = " ".join(f"{axis}={degree}" for axis, degree in title.mesh.items()) or "one chip"
    replicas = ", ".join(
        f"{count} {'replica' if role == 'both' else role}{'s' * (count > 1 and role == 'both')}"
        for role, count in title.replicas.items()
    )
    scenario = title.scenario
    where = f"{scenario.model.id} on {system_title(scenario.system)}: {replicas} of {mesh}"
    return clean(f"{where}, {scenario.plan.precision.compute.id}, {scenario.plan.engine}")


def _headline(prediction: ServingPrediction) -> Iterator[RenderableType]:
    yield Text.assemble((_about(prediction.title).plain, "bold"))
    metrics = prediction.metrics
    rate = (
        f"{metrics.requests:,} requests in {format_quantity(metrics.duration_s, 's')}, {metrics.requests_per_s:.2f}/s"
    )
    speed = f"{metrics.output_tokens_per_s:,.0f} output tokens/s, {prediction.tokens_per_s_per_chip:,.0f} a chip"
    yield Text(f"{rate}; {speed}")
    for limit in prediction.limits:
        word, colour = ("kept", "green") if limit.met else ("missed", "red")
        sentence = f"{limit.metric.upper()} p{limit.percentile:g} {format_quantity(limit.found, 's')}"
        yield Text.assemble((word, colour), f"  {sentence}, limit {format_quantity(limit.limit, 's')}")
    if not prediction.met:
        yield Text("`ridgeline explain` says why, and what would help", style="dim")
    if metrics.goodput is not None:
        yield Text(f"goodput {metrics.goodput:.2f} requests/s, {percent(prediction.goodput_share)} of all")


def metric_rows(prediction: ServingPrediction) -> tuple[list[str], list[tuple[str, ...]]]:
    """Mean and percentiles by name, and a row of them for each metric."""
    heads = list(prediction.metrics.ttft.figures)
    figures = {name: getattr(prediction.metrics, key).figures for key, name in METRICS.items()}
    return heads, [(name, *(format_quantity(row[head], "s") for head in heads)) for name, row in figures.items()]


def _bars(parts: dict[str, float]) -> Table:
    total = sum(parts.values()) or 1.0
    rows = (
        (name, format_quantity(seconds, "s"), seconds / total, COLOURS[name], MEANINGS[name])
        for name, seconds in parts.items()
        if seconds > 0
    )
    return bar_table(rows, form=percent)


def _fleet(prediction: ServingPrediction) -> Table:
    cost = prediction.cost_per_million_tokens_usd
    cache = "; ".join(
        f"{instance.memory.tokens:,} tokens{'' if instance.role == 'both' else ' of ' + instance.role}, "
        f"{format_gib(instance.memory.kv_bytes)} beside {format_gib(instance.memory.weights)} of weights"
        for instance in prediction.instances
    )
    return facts(
        ("cache of a replica", cache),
        ("prefix hits", percent(prediction.metrics.hit_share)),
        ("preemptions", f"{prediction.preemptions:,}"),
        ("cache moved", format_quantity(prediction.run.transfer_bytes, "B") if prediction.run.transfer_bytes else ""),
        ("sent again", f"{prediction.run.retried:,} after a failure" if prediction.run.retried else ""),
        ("replicas", _changes(prediction)),
        ("cost", f"${cost:,.2f} per million output tokens" if cost is not None else ""),
    )


def _changes(prediction: ServingPrediction) -> str:
    changes = prediction.replica_changes
    if len(changes) < 2:
        return ""
    counts = [int(count) for _, count in changes]
    return f"{min(counts)} to {max(counts)}, {len(changes) - 1} changes"


# ---- why it is slow


def draw_why_slow(why: WhySlow, console: Console) -> None:
    """Print why slow requests are slow, and what would help."""
    console.print(blocks(_story(why), [_comparison(why)], [_slowest(why)], [_remedies(why)], _nearest(why)))


def _story(why: WhySlow) -> Iterator[RenderableType]:
    name = f"{why.metric.upper()} p{why.percentile:g}"
    yield Text.assemble((_about(why.prediction.title).plain, "bold"))
    took = format_quantity(why.found, "s")
    cause = why.cause
    yield Text.assemble(f"{name} is {took}, most of all for ", (cause, COLOURS[cause]), f": {MEANINGS[cause]}")
    queue = why.queue
    if queue is not None:
        when = f"from {queue.began_s:.1f} s to {queue.peak_s:.1f} s on replica {queue.replica}"
        yield Text(f"the queue grew to {queue.peak:,} requests {when}; {LIMITS[queue.limit]}")


def _comparison(why: WhySlow) -> Table:
    right = ("slow requests", "usual ones", "more")
    rows = (
        (Text(part, style=COLOURS[part]), format_quantity(seconds, "s"), format_quantity(why.usual[part], "s"),
         format_quantity(max(seconds - why.usual[part], 0.0), "s"))
        for part, seconds in why.slow.items()
        if seconds > 0 or why.usual[part] > 0
    )  # fmt: skip
    return header_table(("part", *right), rows, right=right)


def _slowest(why: WhySlow) -> Table:
    heads = ("sent", "took", "prompt", "output", "replica")
    table = header_table(("slowest", *heads, "mostly"), right=heads)
    for one in why.slowest:
        most = max(one.parts, key=lambda part: one.parts[part])
        share = one.parts[most] / (sum(one.parts.values()) or 1.0)
        cells = (f"{one.sent_s:.1f} s", format_quantity(one.seconds, "s"))
        counts = (f"{one.prompt_tokens:,}", f"{one.output_tokens:,}", str(one.replica))
        table.add_row(clean(one.id[:24]), *cells, *counts, f"{most} {percent(share)}")
    return table


def _remedies(why: WhySlow) -> Table | Text:
    if not why.remedies:
        return Text("none of the changes that were simulated helps", style="yellow")
    right = (f"{why.metric.upper()} p{why.percentile:g}", "goodput", "chips")
    rows = (
        (clean(f"--set {remedy.change}"), format_quantity(remedy.found, "s"),
         DASH if remedy.goodput is None else f"{remedy.goodput:.2f}/s", str(remedy.chips))
        for remedy in why.remedies[:MOST]
    )  # fmt: skip
    return header_table(("would help (simulated)", *right), rows, right=right)


def _nearest(why: WhySlow) -> Iterator[RenderableType]:
    """What can be met where the objective is not."""
    missed = [limit for limit in why.prediction.limits if not limit.met]
    for one in missed:
        least = why.least[one.metric]
        name = f"{one.metric.upper()} p{one.percentile:g}"
        if one.limit < least:
            floor = format_quantity(least, "s")
            yield Text(f"{name} below {floor} cannot be met at any load: so long takes a request alone", style="red")
        yield Text(f"{name}: the nearest that this deployment keeps is {format_quantity(one.found, 's')}")
    if why.kept_rate is not None:
        yield Text(f"every limit is kept up to {why.kept_rate:.2f} requests/s of this load")
    elif why.prediction.limits and missed:
        yield Text("no rate of this load keeps every limit on this deployment", style="red")


# ---- request logs


def draw_request_log(fit: LogFit, console: Console) -> None:
    """Print what five numbers of a log are worth."""
    console.print(Text.assemble(clean(f"{fit.log.name}: {fit.errors.requests:,} measured requests"), style="bold"))
    own = "from this log" if fit.own else "from another log"
    console.print(
        Text(f"five numbers of a step {own}, the scheduler of vLLM {fit.log.version or '(newest)'}", style="dim")
    )
    console.print(facts(*((name, format_quantity(value, "s")) for name, value in asdict(fit.cost).items())))
    rows = {"all requests": fit.errors, "the later half, numbers of the earlier": fit.held_out}
    heads = ("E2E of a request", "mean E2E", *(f"TTFT {name}" for name in fit.errors.ttft))
    table = header_table(("residuals", *heads), right=heads)
    for name, errors in rows.items():
        if errors is not None:
            firsts = [signed_share(value, unit=" %") for value in errors.ttft.values()]
            table.add_row(name, percent(errors.e2e_mape), signed_share(errors.e2e_mean, unit=" %"), *firsts)
    console.print(table)


# -- bench ------------------------------------------------------------------------------------------------------------


MEANING = {
    "alone": "a prompt of its length with no other request in flight",
    "waited": "the rest of TTFT: queue, prefills of others",
    "first-token": "TTFT: queue and prefill (too few requests were alone to tell them apart)",
    "pace": "decode at the run's median pause",
    "slower": "pauses up to three times that: larger batches, short prefills of others",
    "stalled": "what longer pauses took: long prefills of others, preemption, the host",
    "after-last-token": "from the last token to the end of the answer",
}


def draw_bench(report: BenchReport, console: Console) -> None:
    """A block for each run; medians below several."""
    for run in report.runs:
        console.print(
            blocks([_title(run)], [_bench_metrics(run)], [Text("an average request", style="bold"), _time(run)])
        )
        console.print()
    if len(report.runs) > 1:
        parts = [f"{name.removesuffix('_s').upper()} {_seconds(value)}"
                 for name, value in report.medians.items() if name != "requests_per_s"]  # fmt: skip
        console.print(Text(f"median of {len(report.runs)} runs: {', '.join(parts)}"))


def _title(run: BenchAnalysis) -> Text:
    asked, metrics = run.run, run.metrics
    rate = f"{asked.finite_rate:g}/s" if asked.finite_rate else "all at once"
    limit = f", at most {asked.max_concurrency} at a time" if asked.max_concurrency else ""
    failed = f", {asked.failed:,} failed" if asked.failed else ""
    flight = f", {asked.most_in_flight:,} in flight at most" if asked.most_in_flight else ""
    sent = f"{asked.requests:,} requests sent at {rate}{limit}{failed}"
    head = f"{sent}: {metrics.requests_per_s:.4g} requests/s, "
    return Text.assemble(
        clean(asked.source), f" ({asked.tool}) ", head, f"{metrics.output_tokens_per_s:,.0f} output tokens/s{flight}"
    )


def _bench_metrics(run: BenchAnalysis) -> Table:
    shares = list(run.metrics.ttft.percentiles_by_share)
    names = ["mean", "median", *(f"p{share}" for share in shares)]
    figures = {name.upper(): getattr(run.metrics, name) for name in METRICS}
    rows = (
        (name, *map(_seconds, (one.mean, one.median, *(one.percentiles_by_share[share] for share in shares))))
        for name, one in figures.items()
    )
    return header_table(["", *names], rows, right=names)


def _time(run: BenchAnalysis) -> Table:
    total = sum(run.time.values()) or 1.0
    rows = (
        (name, _seconds(seconds), f"{seconds / total:.0%}", bar(seconds / total, "blue", 16), MEANING[name])
        for name, seconds in run.time.items()
        if seconds > 0
    )
    return grid("left", "right", "right", "left", "left", rows=rows)


def _seconds(value: float) -> str:
    return format_quantity(value, "s", 4)


# -- explain bench ----------------------------------------------------------------------------------------------------


def draw_bench_explanation(explanation: BenchExplanation, console: Console) -> None:
    """A table for each load."""
    if explanation.anchor:
        numbers = explanation.step_numbers.items()
        parts = ", ".join(f"{name} {format_quantity(seconds, 's', 3)}" for name, seconds in numbers)
        fit = f" (mean |residual| of E2E there {explanation.anchored.e2e_mape if explanation.anchored else 0:.1%})"
        console.print(Text.assemble("anchored on ", clean(explanation.anchor), f"{fit}: {parts}"))
        console.print()
    for load in explanation.loads:
        rate = f"{load.finite_rate:g} requests/s" if load.finite_rate else "all at once"
        limit = f", at most {load.max_concurrency} at a time" if load.max_concurrency else ""
        times = f"median of {load.repeats} repeats" if load.repeats > 1 else "one run"
        console.print(Text(f"{rate}{limit}: {times}, {load.requests:,} requests; medians of requests", style="bold"))
        causes = list(load.causes)
        heads = ["measured", "predicted", "residual", "spread", *(["cold"] if explanation.anchor else []), *causes]
        table = header_table(["", *heads], right=heads)
        for name in EXPLAINED_METRICS:
            row = [_seconds(load.measured[name]), _seconds(load.predicted[name])]
            row += [signed_share(load.residuals[name]), f"{load.spread[name]:.0%}"]
            row += [_seconds(load.cold[name])] if explanation.anchor else []
            row += [signed_quantity(load.causes[cause][name], "s", 3) for cause in causes]
            table.add_row(name.upper(), *row)
        console.print(table)
        console.print()
    for line in list_lines("notes", explanation.notes):
        console.print(line)
