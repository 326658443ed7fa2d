"""Draw a prediction of post-training, on the terminal and as a page: phases, who waits, memory at every moment."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.core.units import format_count, format_gib, format_quantity
from ridgeline.hardware.what_if import system_title
from ridgeline.report import html
from ridgeline.report.cells import bar_table, blocks, clean, facts, header_table, list_lines, percent
from ridgeline.rl import ReplayCost, RlPrediction
from ridgeline.search.rl import RlAnswer, RlPlanRow

COLOURS = {"generate": "green", "update": "blue", "critic update": "blue", "weight sync": "magenta", "other": "white"}
USUAL_COLOUR = "cyan"
MOST = 6


def draw_rl(prediction: RlPrediction, console: Console) -> None:
    """Print the page of a step of post-training."""
    assumed_lines = list_lines("assumed", prediction.assumptions, most=MOST)
    console.print(
        blocks(
            _headline(prediction), [_phases(prediction)], [_pools(prediction)], [_memory(prediction)],
            [_facts(prediction)], assumed_lines,
        )
    )  # fmt: skip


def title_text(prediction: RlPrediction) -> str:
    """What is predicted, in one line."""
    scenario, title = prediction.scenario, prediction.title
    work, rl = scenario.workload, scenario.plan.rl
    pools = f", {title.train_chips} train, {title.rollout_chips} generate" if rl.separate else ""
    batch = f"{work.data.prompts} prompts x {work.data.samples}"
    return f"{work.algorithm} of {scenario.model.id} on {system_title(scenario.system)}: {batch}, {rl.placement}{pools}"


def _headline(prediction: RlPrediction) -> Iterator[RenderableType]:
    yield Text.assemble((clean(title_text(prediction)).plain, "bold"))
    low, high = prediction.interval.low, prediction.interval.high
    step, late = format_quantity(prediction.step_time_s, "s"), format_quantity(prediction.step_time_p90_s, "s")
    span = f"{format_quantity(low, 's')} to {format_quantity(high, 's')}"
    yield Text(f"{step} a step, {late} in one of ten; {prediction.interval.coverage:.0%} between {span}")
    yield Text(f"{prediction.interval.basis}", style="dim")
    waits = {
        "training": "training sets the pace", "rollout": "the rollout sets the pace",
        "one after the other": "phases follow each other",
    }  # fmt: skip
    yield Text(f"{waits[prediction.bound_by]}; {prediction.tokens_per_s_per_chip:,.0f} tokens/s a chip")
    memory = prediction.memory
    if not memory.fits:
        moment = memory.tightest
        need = f"{format_gib(moment.total_bytes)} of {format_gib(moment.capacity_bytes)}"
        host = "" if not moment.fits else " on the host"
        yield Text.assemble(
            ("runs out of memory", "red"), f"{host}: {moment.moment} on the chips that {_verb(moment.pool)}, {need}"
        )


def _verb(pool: str) -> str:
    return {"train": "train", "rollout": "generate"}.get(pool, "do everything")


def _phases(prediction: RlPrediction) -> Table:
    rows = []
    for phase in prediction.phases:
        hidden = phase.seconds - phase.exposed_s
        size = format_quantity(phase.exposed_s, "s")
        beside_text = (
            f", {format_quantity(hidden, 's')} of it hidden" if hidden > 0.005 * prediction.step_time_s else ""
        )
        share = phase.exposed_s / prediction.step_time_s
        rows.append((phase.name, size, share, COLOURS.get(phase.name, USUAL_COLOUR), phase.meaning + beside_text))
    return bar_table(rows, form=percent)


def _pools(prediction: RlPrediction) -> Table:
    right = ("chips", "busy", "idle")
    table = header_table(("pool", *right), right=right)
    for pool in prediction.idle:
        table.add_row(pool.pool, str(pool.chips), format_quantity(pool.busy_s, "s"), percent(pool.idle_share))
    return table


def _memory(prediction: RlPrediction) -> Table:
    right = ("holds", "of", "free")
    table = header_table(("moment", *right, "mostly"), right=right)
    for moment in prediction.memory.moments:
        largest = sorted(moment.bytes_by_owner.items(), key=lambda entry: -entry[1])[:3]
        mostly = ", ".join(f"{name} {format_gib(size)}" for name, size in largest if size > 0)
        free = moment.capacity_bytes - moment.total_bytes
        style = "" if moment.fits else "red"
        name = f"{moment.moment} ({moment.pool})" if prediction.scenario.plan.rl.separate else moment.moment
        cells = (format_gib(moment.total_bytes), format_gib(moment.capacity_bytes), format_gib(free))
        table.add_row(Text(name, style=style), *(Text(cell, style=style) for cell in cells), mostly)
    return table


def _facts(prediction: RlPrediction) -> Table:
    rollout, sync, lag = prediction.rollout, prediction.weight_sync, prediction.staleness
    cost = prediction.cost_per_1000_steps_usd
    shares = ", ".join(f"{share:.0%} by {version}" for version, share in lag.shares.items())
    drift = ", ".join(f"step {point.step}: {format_quantity(point.step_time_s, 's')}" for point in prediction.drift)
    tail = f"{format_quantity(rollout.tail_s, 's')} with fewer than a tenth of the samples left" if rollout else ""
    preempted_text = f"; {rollout.preempted:.1f} preemptions a sample" if rollout and rollout.preempted > 0.005 else ""
    return facts(
        (
            "tokens of a step",
            f"{format_count(prediction.tokens)}, {format_count(prediction.answer_tokens)} of them written",
        ),
        ("tail of the rollout", tail + preempted_text),
        ("staleness", f"versions behind: {shares}" if lag.bound else ""),
        (
            "weight sync",
            f"{format_quantity(sync.seconds, 's')} by {sync.method}, {sync.pieces:,} pieces" if sync else "",
        ),
        ("replay", _replay_words(prediction.replay) if prediction.replay else ""),
        ("over training", drift),
        ("cost", f"${cost:,.0f} for 1,000 steps" if cost is not None else ""),
    )


def _replay_words(replay: ReplayCost) -> str:
    """What earlier data takes of a step, and what that costs."""
    if not replay.share:
        return "none: all documents are new"
    ends_text = (
        f" ({replay.first_share:.0%} to {replay.last_share:.0%})" if replay.first_share != replay.last_share else ""
    )
    share = f"{replay.share:.0%} of the documents{ends_text}, {replay.token_share:.0%} of the tokens"
    time = f"{format_quantity(replay.seconds, 's')} of a step"
    usd = replay.cost_per_1000_steps_usd
    cost = f" and ${usd:,.0f} of 1,000 steps" if usd is not None else ""
    return f"{share}: {time}{cost}; {replay.steps_factor:.2f} times as many steps for the same new data"


# -- a plan -----------------------------------------------------------------------------------------------------------


def draw_rl_plan(found: RlAnswer, console: Console) -> None:
    """Print what a search of post-training recommends, the plans beside it, and what to change next."""
    console.print(blocks(_recommendation_lines(found), [_plan_rows(found)], _next_changes(found)))
    if found.prediction is not None:
        console.print()
        draw_rl(found.prediction, console)


def _recommendation_lines(found: RlAnswer) -> Iterator[RenderableType]:
    best = found.best
    if best is None:
        yield from (clean(problem) for problem in found.problems)
        return
    row = RlPlanRow(candidate=best)
    pools = (
        f"{row.train_chips} chips train, {row.rollout_chips} generate" if row.placement != "colocated" else "colocated"
    )
    yield Text(f"{format_quantity(best.seconds, 's')} a step on {best.scenario.system.name}: {pools}", style="bold")
    yield clean(f"trainer {row.plan}; rollout replicas of tp={row.rollout_tp}")
    if found.advice:
        yield Text(found.advice, style="green" if found.go_async else "yellow")
    if found.given_s is not None:
        yield Text(f"the plan in the file takes {format_quantity(found.given_s, 's')}")
    counts = ", ".join(f"{count} {name}" for name, count in found.tried.items())
    yield Text(f"{counts} tried in {found.seconds:.1f} s, {found.cpu_seconds:.1f} s of CPU", style="dim")
    yield from (clean(f"assumed: {note}") for note in found.notes)


def _plan_rows(found: RlAnswer) -> Table:
    right = ("train", "generate", "rollout tp", "staleness", "step", "memory", "most idle")
    table = header_table(("placement", *right, "trainer"), right=right)
    fastest = {row.candidate.seconds for row in found.rows}
    other_parts = [RlPlanRow(candidate=entry) for entry in found.by_placement.values() if entry.seconds not in fastest]
    for row in (*found.rows, *other_parts):
        pool = max(row.idle, key=lambda name: row.idle[name])
        cells = (str(row.train_chips), str(row.rollout_chips), str(row.rollout_tp), f"{row.staleness:g}")
        more = (format_quantity(row.step_time_s, "s"), percent(row.memory_share), f"{pool} {row.idle[pool]:.0%}")
        table.add_row(row.placement, *cells, *more, clean(row.plan))
    return table


def _next_changes(found: RlAnswer) -> Iterator[RenderableType]:
    if not found.gains:
        return
    table = header_table(("what to change next", "a step", "saves"), right=("a step", "saves"))
    for gain in found.gains:
        table.add_row(gain.change, format_quantity(gain.step_time_s, "s"), format_quantity(gain.saved_s, "s"))
    yield table


# -- the page ---------------------------------------------------------------------------------------------------------


def rl_page(prediction: RlPrediction) -> str:
    """The whole page; every piece of text from a scenario is escaped."""
    memory = prediction.memory.tightest
    figures = (
        (format_quantity(prediction.step_time_s, "s"), "a step"),
        (format_quantity(prediction.step_time_p90_s, "s"), "in one of ten"),
        (f"{prediction.tokens_per_s_per_chip:,.0f}", "tokens/s a chip"),
        (percent(max(pool.idle_share for pool in prediction.idle)), "idle in the pool that waits most"),
        (format_gib(memory.total_bytes), f"of {format_gib(memory.capacity_bytes)} at {memory.moment}"),
    )
    phases = [
        (
            phase.name,
            phase.pool,
            f"{phase.begin_s:.1f}",
            f"{phase.seconds:.1f}",
            f"{phase.exposed_s:.1f}",
            phase.meaning,
        )
        for phase in prediction.phases
    ]
    moments = [
        (entry.pool, entry.moment, format_gib(entry.total_bytes), format_gib(entry.capacity_bytes),
         "yes" if entry.fits else "no",
         ", ".join(f"{name} {format_gib(size)}" for name, size in entry.bytes_by_owner.items() if size > 0))
        for entry in prediction.memory.moments
    ]  # fmt: skip
    pools = [(pool.pool, pool.chips, f"{pool.busy_s:.1f}", percent(pool.idle_share)) for pool in prediction.idle]
    body = (
        f"<h1>Post-training: {html.escape_text(prediction.scenario.name or title_text(prediction))}</h1>"
        f"{html.facts(figures)}<p>{html.escape_text(title_text(prediction))}</p>"
        + html.section("Phases", ("phase", "pool", "begins, s", "seconds", "exposed", "what"), phases, text=(0, 1, 5))
        + html.section("Pools", ("pool", "chips", "busy, s", "idle"), pools, text=(0,))
        + html.section("Memory", ("pool", "moment", "holds", "of", "fits", "by owner"), moments, text=(0, 1, 5))
        + html.list_items("Assumed", prediction.assumptions)
    )
    return html.document(title=f"Ridgeline: {title_text(prediction)}", body=body, style=html.page_style())
