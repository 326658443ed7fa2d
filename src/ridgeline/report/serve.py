"""Draw a serving prediction, why it is slow, and the fit of a request log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.calibrate.explain_bench import METRICS as EXPLAINED_METRICS
from ridgeline.calibrate.explain_bench import BenchExplanation, BenchLoad
from ridgeline.calibrate.request_log import LogFit
from ridgeline.core.units import format_gib, format_quantity, signed_quantity, signed_share
from ridgeline.report.cells import DASH, Side, bar, blocks, clean, facts, grid, header_table, list_lines, percent
from ridgeline.serving.bench_result import BenchAnalysis, BenchReport
from ridgeline.serving.serving_prediction import ServedTitle, ServingPrediction
from ridgeline.serving.why_slow import MEANINGS, WhySlow

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
BAR: tuple[Side, ...] = ("left", "right", "right", "left", "left")
MOST = 6


# ---- the page of a prediction


def draw_serving(prediction: ServingPrediction, console: Console) -> None:
    """Print the page of a serving prediction."""
    console.print(
        blocks(
            _headline(prediction),
            _metrics(prediction),
            _where(prediction),
            _fleet(prediction),
            _assumption_lines(prediction),
        )
    )


def _about(title: ServedTitle) -> Text:
    mesh = " ".join(f"{axis}={degree}" for axis, degree in title.mesh.items()) or "one chip"
    replicas = ", ".join(
        f"{count} {'replica' if role == 'both' else role}{'s' * (count > 1 and role == 'both')}"
        for role, count in title.replicas.items()
    )
    scenario = title.scenario
    where = f"{scenario.model.id} on {scenario.system.name}: {replicas} of {mesh}"
    what = f"{where}, {scenario.plan.precision.compute.id}, {scenario.plan.engine}"
    return clean(what)


def _headline(prediction: ServingPrediction) -> Iterator[RenderableType]:
    yield Text.assemble((_about(prediction.title).plain, "bold"))
    rate = f"{prediction.metrics.requests:,} requests in {format_quantity(prediction.metrics.duration_s, 's')}, "
    rate += (
        f"{prediction.metrics.requests_per_s:.2f}/s; {prediction.metrics.output_tokens_per_s:,.0f} output tokens/s, "
    )
    yield Text(rate + f"{prediction.tokens_per_s_per_chip:,.0f} a chip")
    for limit in prediction.limits:
        word, colour = ("kept", "green") if limit.met else ("missed", "red")
        sentence = f"{limit.metric.upper()} p{limit.percentile:g} {format_quantity(limit.found, 's')}"
        yield Text.assemble((word, colour), f"  {sentence}, limit {format_quantity(limit.limit, 's')}")
    if not prediction.met:
        yield Text("`ridgeline explain` says why, and what would help", style="dim")
    if prediction.metrics.goodput is not None:
        yield Text(f"goodput {prediction.metrics.goodput:.2f} requests/s, {percent(prediction.goodput_share)} of all")


def _metrics(prediction: ServingPrediction) -> Iterator[RenderableType]:
    heads = list(prediction.metrics.ttft.figures)
    table = header_table(("", *heads), right=heads)
    for key, name in METRICS.items():
        values = getattr(prediction.metrics, key).figures
        table.add_row(name, *(format_quantity(values[head], "s") for head in heads))
    yield table


def _where(prediction: ServingPrediction) -> Iterator[RenderableType]:
    yield Text("where the time of a request goes", style="bold")
    yield _bars(prediction.metrics.time)


def _bars(parts: dict[str, float]) -> RenderableType:
    table = grid(*BAR)
    total = sum(parts.values()) or 1.0
    for name, seconds in parts.items():
        if seconds > 0:
            share = seconds / total
            cells = (format_quantity(seconds, "s"), percent(share), bar(share, COLOURS[name]))
            table.add_row(name, *cells, Text(MEANINGS[name], style="dim"))
    return table


def _fleet(prediction: ServingPrediction) -> Iterator[RenderableType]:
    cost = prediction.cost_per_million_tokens_usd
    cache = "; ".join(
        f"{instance.memory.tokens:,} tokens{'' if instance.role == 'both' else ' of ' + instance.role}, "
        f"{format_gib(instance.memory.kv_bytes)} beside {format_gib(instance.memory.weights)} of weights"
        for instance in prediction.instances
    )
    yield facts(
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


def _assumption_lines(prediction: ServingPrediction) -> Iterator[RenderableType]:
    yield from list_lines("assumed", prediction.assumptions, most=MOST)


# ---- why it is slow


def draw_why_slow(why: WhySlow, console: Console) -> None:
    """Print why slow requests are slow, and what would help."""
    console.print(blocks(_story(why), _comparison_lines(why), _slowest(why), _remedies(why), _nearest(why)))


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


def _comparison_lines(why: WhySlow) -> Iterator[RenderableType]:
    table = header_table(("part", "slow requests", "usual ones", "more"), right=("slow requests", "usual ones", "more"))
    for part, seconds in why.slow.items():
        usual = why.usual[part]
        if seconds > 0 or usual > 0:
            cells = [format_quantity(value, "s") for value in (seconds, usual, max(seconds - usual, 0.0))]
            table.add_row(Text(part, style=COLOURS[part]), *cells)
    yield table


def _slowest(why: WhySlow) -> Iterator[RenderableType]:
    heads = ("sent", "took", "prompt", "output", "replica")
    table = header_table(("slowest", *heads, "mostly"), right=heads)
    for one in why.slowest:
        most = max(one.parts, key=lambda part: one.parts[part])
        share = one.parts[most] / (sum(one.parts.values()) or 1.0)
        cells = (f"{one.sent_s:.1f} s", format_quantity(one.seconds, "s"))
        counts = (f"{one.prompt_tokens:,}", f"{one.output_tokens:,}", str(one.replica))
        table.add_row(clean(one.id[:24]), *cells, *counts, f"{most} {percent(share)}")
    yield table


def _remedies(why: WhySlow) -> Iterator[RenderableType]:
    if not why.remedies:
        yield Text("none of the changes that were simulated helps", style="yellow")
        return
    name = f"{why.metric.upper()} p{why.percentile:g}"
    table = header_table(("would help (simulated)", name, "goodput", "chips"), right=(name, "goodput", "chips"))
    for remedy in why.remedies[:MOST]:
        good = DASH if remedy.goodput is None else f"{remedy.goodput:.2f}/s"
        table.add_row(clean(f"--set {remedy.change}"), format_quantity(remedy.found, "s"), good, str(remedy.chips))
    yield table


def _nearest(why: WhySlow) -> Iterator[RenderableType]:
    """What can be met where the objective is not."""
    missed = [limit for limit in why.prediction.limits if not limit.met]
    for one in missed:
        least = why.least[one.metric]
        name = f"{one.metric.upper()} p{one.percentile:g}"
        if one.limit < least:
            said = (
                f"{name} below {format_quantity(least, 's')} cannot be met at any load: so long takes a request alone"
            )
            yield Text(said, style="red")
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


BENCH_METRICS = ("ttft", "tpot", "itl", "e2e")
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
    failed = f", {metrics.failed:,} failed" if metrics.failed else ""
    flight = f", {metrics.most_in_flight:,} in flight at most" if metrics.most_in_flight else ""
    sent = f"{metrics.requests:,} requests sent at {rate}{limit}{failed}"
    head = f"{sent}: {metrics.requests_per_s:.4g} requests/s, "
    return Text.assemble(
        clean(asked.source), f" ({asked.tool}) ", head, f"{metrics.output_tokens_per_s:,.0f} output tokens/s{flight}"
    )


def _bench_metrics(run: BenchAnalysis) -> Table:
    shares = list(run.metrics.ttft.percentiles_by_share)
    names = ["mean", "median", *(f"p{share}" for share in shares)]
    table = header_table(["", *names], right=names)
    for name in BENCH_METRICS:
        one = getattr(run.metrics, name)
        values = [one.mean, one.median, *(one.percentiles_by_share[share] for share in shares)]
        table.add_row(name.upper(), *(_seconds(value) for value in values))
    return table


def _time(run: BenchAnalysis) -> Table:
    total = sum(run.time.values()) or 1.0
    table = grid("left", "right", "right", "left", "left")
    for name, seconds in run.time.items():
        if seconds > 0:
            share = seconds / total
            table.add_row(name, _seconds(seconds), f"{share:.0%}", bar(share, "blue", 16), MEANING[name])
    return table


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
        console.print(Text(_explain_bench_title(load), style="bold"))
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


def _explain_bench_title(load: BenchLoad) -> str:
    rate = f"{load.finite_rate:g} requests/s" if load.finite_rate else "all at once"
    limit = f", at most {load.max_concurrency} at a time" if load.max_concurrency else ""
    times = f"median of {load.repeats} repeats" if load.repeats > 1 else "one run"
    return f"{rate}{limit}: {times}, {load.requests:,} requests; medians of requests"
