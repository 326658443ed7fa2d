"""Turn the sheet of a plan into a page: the winner, the next best, why, what next, how it scales, how sure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.core.units import DECIMAL, format_count, format_gib, format_quantity, signed_quantity, signed_share
from ridgeline.report.cells import DASH, blocks, clean, facts, headed, listed
from ridgeline.report.plot import Axis, Dot, scatter
from ridgeline.report.predict import COLOURS
from ridgeline.report.sheets.plan import (
    ComparedSheet,
    GivenPlanSheet,
    HandedPlanSheet,
    PlanSheet,
    PricedPlanSheet,
    RefinedPlanSheet,
    SureSheet,
)

WORTH = 0.005  # gains below half a per cent are not worth telling
MOST_UNTOLD = 3  # decisions named of a plan that a target cannot express
MOST_ENGINES = 3  # other engines that are told
ENOUGH_RUNS = 8  # of an engine on a family of chips, below which its gain is hardly more than a guess
MOST = 12  # assumptions shown before the rest is counted
Form = tuple[str, str, Callable[[float], str]]  # key of a sheet, name, how a number is written
FORMS: dict[str, Form] = {
    "time": ("step_time_s", "step", lambda value: format_quantity(value, "s", 3)),
    "memory": ("peak_memory_bytes", "memory of the fullest chip", format_gib),
    "cost": ("cost_usd", "USD a step", lambda value: f"{value:.3g} USD"),
    "energy": ("energy_j", "energy a step", lambda value: format_quantity(value, "J", 3)),
    "chips": ("chips", "chips", lambda value: f"{value:,.0f}"),
}
UNKEPT = "run event by event it does not keep that gain"  # why a plan that the engine takes is not recommended


def draw_plan(sheet: PlanSheet, console: Console) -> None:
    """Print the page of a plan."""
    console.print(page(sheet))


def page(sheet: PlanSheet) -> RenderableType:
    """Everything at one glance, the most important first; how long the search took stands last."""
    return blocks(
        _headline(sheet), _top(sheet), _refined(sheet), _why(sheet), _next(sheet), _software(sheet), _compared(sheet),
        _frontier(sheet),
        listed("assumed", sheet["assumptions"], most=MOST), [_found(sheet)],
    )  # fmt: skip


def _table(*columns: str, right: Iterable[str] = ()) -> Table:
    return headed(columns, right=right, head="dim", overflow="fold")


def _headline(sheet: PlanSheet) -> Iterable[RenderableType]:
    best = sheet["plans"][0]
    span, capacity = best["interval"], sheet["capacity_bytes"]
    what = f"{sheet['model']} on {sheet['system']}, {sheet['global_batch']} x {sheet['seq']} tokens a step"
    yield Text.assemble(clean(what), style="bold")
    low, high = format_quantity(span["low"], "s", 3), format_quantity(span["high"], "s", 3)
    step = Text.assemble(
        (format_quantity(best["step_time_s"], "s"), "bold"),
        (f"   {low} to {high} with {span['coverage']:.0%} probability", "dim"),
    )
    free = 1 - best["peak_memory_bytes"] / capacity
    rows: list[tuple[str, Text | str]] = [
        ("plan", Text(best["words"], style="bold green")),
        ("", Text(f"under {sheet['engine']}{_target(sheet)}", style="dim")),
        ("step", step),
        ("speed", f"{best['tokens_per_s_per_chip']:,.0f} tokens/s/chip   MFU {best['mfu']:.1%}"),
        ("memory", f"{format_gib(best['peak_memory_bytes'])} of {format_gib(capacity)}, {free:.0%} free"),
    ]
    bill = _bill(best)
    rows += [("bill", bill)] if bill else []
    rows += [("run", _run(sheet))] if "run" in sheet else []
    rows += [("yours", _given(sheet["given"]))] if "given" in sheet else []
    if not sheet["explained"]:
        early = (
            "before all reasons were found" if sheet["complete"] else "before all plans were priced: the best so far"
        )
        rows.append(("stopped", Text(early, style="bold yellow")))
    yield facts(*rows)


def _target(sheet: PlanSheet) -> str:
    """The target that the plan is for, where one was asked for."""
    return f", {sheet['to']} can express all of it" if "to" in sheet else ""


def _bill(best: PricedPlanSheet) -> str:
    words = [] if best["cost_usd"] is None else [f"{best['cost_usd']:.3g} USD a step"]
    words += [] if best["energy_j"] is None else [f"{format_quantity(best['energy_j'], 'J', 3)} at rated power"]
    return ", ".join(words)


def _run(sheet: PlanSheet) -> str:
    run = sheet["run"]
    words = [f"{format_count(sheet['tokens'])} tokens in {run['days']:.1f} days, {run['useful']:.1%} of them useful"]
    words += [] if run["cost_usd"] is None else [f"{run['cost_usd']:,.0f} USD"]
    words += [] if run["energy_j"] is None else [format_quantity(run["energy_j"], "J", 3)]
    return ", ".join(words)


def _given(own: GivenPlanSheet) -> str:
    place = f"{own['faster']:,} plans are faster" if own["faster"] else "none is faster"
    lost = f"{signed_quantity(own['loses_s'], 's')} to the best: {own['to']}" if own["loses_s"] else "the best itself"
    return f"{own['words']}: {format_quantity(own['step_time_s'], 's')}, {place}; {lost}"


def _top(sheet: PlanSheet) -> Iterable[RenderableType]:
    table = _table("", "step", "loses", "memory", "tokens/s/chip", "MFU", "plan",
                   right=("", "step", "loses", "memory", "tokens/s/chip", "MFU"))  # fmt: skip
    best = sheet["plans"][0]
    for number, plan in enumerate(sheet["kinds"], 1):
        lost = plan["step_time_s"] - best["step_time_s"]
        table.add_row(
            str(number), format_quantity(plan["step_time_s"], "s"), signed_quantity(lost, "s") if number > 1 else DASH,
            format_gib(plan["peak_memory_bytes"]), f"{plan['tokens_per_s_per_chip']:,.0f}", f"{plan['mfu']:.1%}",
            plan["words"],
        )  # fmt: skip
    yield table
    if len(sheet["kinds"]) > 1:
        yield Text("the best plan of each kind: another mesh, sharding or recompute", style="dim")


def _refined(sheet: PlanSheet) -> Iterable[RenderableType]:
    """What moving layers and recomputing by stage gain, and what of it is handed over."""
    own = sheet["handed"]
    if own["refined"]:
        yield from _gained(own, "refined ")
        if own["of"] != sheet["plans"][0]["words"]:
            yield Text.assemble(("        of ", "dim"), own["of"])
    beyond = own["beyond"]
    if beyond is not None:
        yield from _gained(beyond, "further ")
        yield Text.assemble(("        but ", "dim"), clean(beyond["lacking"] or UNKEPT))


def _gained(plan: HandedPlanSheet | RefinedPlanSheet, name: str) -> Iterable[RenderableType]:
    share = plan["saves_s"] / (plan["step_time_s"] + plan["saves_s"])
    gain = f"saves {format_quantity(plan['saves_s'], 's', 3)} ({share:.1%}) of plan 1"
    step = format_quantity(plan["step_time_s"], "s")
    yield Text.assemble(
        (name, "dim"), (step, "bold"), f", {gain}, {format_gib(plan['peak_memory_bytes'])}: {plan['words']}"
    )
    for change in plan["changes"]:
        yield Text.assemble(("        - ", "dim"), change)


def _why(sheet: PlanSheet) -> Iterable[RenderableType]:
    total = sheet["plans"][0]["step_time_s"]
    limits = [(f"{name} {seconds / total:.0%}  ", COLOURS[name]) for name, seconds in sheet["bounds"].items()]
    if sheet["why"]:
        table = _table("instead", "loses", "to", right=("loses",))
        for loss in sheet["why"]:
            table.add_row(loss["choice"], signed_quantity(loss["loses_s"], "s"), loss["to"])
        yield table
    yield Text.assemble(("limited by ", "dim"), *limits)
    events = sheet["plans"][0]["simulated_s"]
    if events is not None:
        text = f"{format_quantity(events, 's')} ({signed_share(events / total - 1, 2)}); {_order(sheet)}"
        yield Text.assemble(("event by event ", "dim"), text)
    sure = sheet["sure"]
    if sure["runner_up_loses_s"] is not None:
        yield Text.assemble(("how sure ", "dim"), _sure(sure, sure["runner_up_loses_s"], total))


def _sure(sure: SureSheet, lost: float, total: float) -> str:
    """Whether the order of the first plans can be trusted; the runner-up loses so many seconds."""
    gap = f"{signed_quantity(lost, 's')} ({signed_share(lost / total)})"
    lead = f"the best plan of another kind loses {gap}"
    if not sure["runner_up_overlaps"]:
        return f"{lead}, which is beyond the 90 % interval ({sure['basis']})"
    return f"{lead}; {_next_plans(sure)} within the 90 % interval ({sure['basis']}): measure to decide"


def _next_plans(sure: SureSheet) -> str:
    """How many of the plans that follow may be as fast.

    >>> _next_plans({"overlapping": 63, "of": 63}), _next_plans({"overlapping": 2, "of": 63})
    ('the next 63 plans are', '2 of the next 63 plans are')
    """
    if sure["of"] == 1:
        return "the next plan is"
    some = "" if sure["overlapping"] == sure["of"] else f"{sure['overlapping']} of "
    return f"{some}the next {sure['of']} plans are"


def _order(sheet: PlanSheet) -> str:
    """Whether the plans that were simulated stay in their order."""
    plans = [(plan["simulated_s"], plan["words"]) for plan in sheet["plans"] if plan["simulated_s"] is not None]
    seconds, words = best = min(plans, key=lambda plan: plan[0])
    if best is plans[0]:
        return f"still the best of the first {len(plans)}"
    return f"the best of the first {len(plans)} is then {words}: {format_quantity(seconds, 's')}"


def _next(sheet: PlanSheet) -> Iterable[RenderableType]:
    if not sheet["next"]:
        return
    table = _table("next", "gains", "how", "by", right=("gains",))
    for change in sheet["next"]:
        table.add_row(
            change["what"],
            signed_share(change["gain"]),
            change["how"] or "another machine",
            Text(change["words"], style="dim"),
        )
    yield table


def software(sheet: PlanSheet) -> list[tuple[str, str, str, str]]:
    """What a feature or another engine would gain, the best first: what, gain, how, and the plan then.

    Engines that were hardly measured are told apart from those that were, and fewer of them.
    """
    rows = [(one["gain"], one["what"], one["how"], one["words"]) for one in sheet["features"]]
    better = [one for one in sheet["engines"] if one["gain"] >= WORTH]
    known = [one for one in better if one["runs"] >= ENOUGH_RUNS][:MOST_ENGINES]
    guessed = [one for one in better if one["runs"] < ENOUGH_RUNS][: MOST_ENGINES - 1]
    for one in (*known, *guessed):
        remarks = ["closed"] if one["availability"] == "closed" else []
        few = f"{one['runs'] or 'no'} run{'s' if one['runs'] > 1 else ''} measured"
        remarks += [few] if one["runs"] < ENOUGH_RUNS else []
        remark = f" ({', '.join(remarks)})" if remarks else ""
        has = f": {', '.join(one['has'])}" if one["has"] else ""
        rows.append((one["gain"], f"engine {one['engine']}{remark}{has}", one["how"], one["words"]))
    for other in sheet.get("untold", ()):
        decisions = ", ".join(
            f"{part['path'].removeprefix('plan.')} = {part['value']}" for part in other["untold"][:MOST_UNTOLD]
        )
        what = f"{sheet['to']} cannot express {decisions}: {other['untold'][0]['why']}"
        rows.append((other["gain"], what, "another target", other["words"]))
    return [(what, signed_share(gain), how, words) for gain, what, how, words in sorted(rows, reverse=True)]


def _software(sheet: PlanSheet) -> Iterable[RenderableType]:
    rows = software(sheet)
    if rows:
        table = _table("other engines, features", "gains", "how", "by", right=("gains",))
        for what, gain, how, words in rows:
            table.add_row(clean(what), gain, how, Text(words, style="dim"))
        yield table
    tried = len(sheet["engines"])
    if tried:
        told = f"{tried} other engine{'s' if tried > 1 else ''} searched coarsely, predictions against predictions"
        yield Text(told if rows else f"{told}: none is faster", style="dim")


def _compared(sheet: PlanSheet) -> Iterable[RenderableType]:
    rows = sheet["compared"]
    if len(rows) < 2:
        return
    fitting = [row for row in rows if "step_time_s" in row]
    first = min(fitting, key=lambda row: row["chips"]) if fitting else None
    names = ["system", "step", "tokens/s", "efficiency", "MFU", "memory", "USD/M tokens", "days", "USD", "plan"]
    sized = len({row["chips"] for row in rows}) > 1
    absent = {"efficiency"} if not sized else set()
    absent |= set() if any("run" in row for row in rows) else {"days", "USD"}
    shown = [name for name in names if name not in absent]
    several = len({row["engine"] for row in rows}) > 1
    table = _table(*shown, *(["engine"] if several else []), right=shown[1:-1])
    for row in rows:
        cells = _row(row)
        style = "bold green" if row["chosen"] else ""
        table.add_row(*(cells[name] for name in shown), *([row["engine"]] if several else []), style=style)
    yield table
    if sized:
        yield Text("efficiency: tokens/s/chip over those of the same chip's smallest system that fits", style="dim")
    if first and len({row["chips"] for row in fitting}) > 2:
        yield from _curve(fitting, first)
    yield from (Text.assemble("  - ", clean(note), style="dim") for note in sheet["skipped"])


def _row(row: ComparedSheet) -> dict[str, str]:
    if "step_time_s" not in row:
        reason = "nothing fits" if row["considered"] else "nothing can be laid out"
        return {"system": row["system"], "plan": reason} | dict.fromkeys(
            ("step", "tokens/s", "efficiency", "MFU", "memory", "USD/M tokens", "days", "USD"), DASH
        )
    run = row.get("run", {})
    million = DECIMAL["M"] / row["tokens"]
    return {
        "system": row["system"],
        "step": format_quantity(row["step_time_s"], "s"),
        "tokens/s": format_count(row["tokens_per_s"]),
        "efficiency": f"{row['efficiency']:.0%}",
        "MFU": f"{row['mfu']:.1%}",
        "memory": f"{format_gib(row['peak_memory_bytes'])} of {format_gib(row['capacity_bytes'])}",
        "USD/M tokens": DASH if row["cost_usd"] is None else f"{row['cost_usd'] * million:.3g}",
        "days": f"{run['days']:.1f}" if run else DASH,
        "USD": DASH if run.get("cost_usd") is None else f"{run['cost_usd']:,.0f}",
        "plan": row["words"],
    }


def _curve(rows: list[ComparedSheet], first: ComparedSheet) -> Iterable[RenderableType]:
    """Tokens per second by chips, beside what perfect scaling from the smallest would give."""
    ideal = [Dot(x=row["chips"], y=first["tokens_per_s_per_chip"] * row["chips"], mark=".") for row in rows]
    real = [Dot(x=row["chips"], y=row["tokens_per_s"]) for row in rows]
    across, up = Axis(name="chips", form=lambda value: f"{value:,.0f}"), Axis(name="tokens/s", form=format_count)
    yield Text("scaling: o predicted, . in proportion to the smallest", style="dim")
    yield from (Text(line.rstrip(), no_wrap=True) for line in scatter([*ideal, *real], across, up))


def _frontier(sheet: PlanSheet) -> Iterable[RenderableType]:
    first, second = sheet["frontier_axes"]
    (key_x, name_x, form_x), (key_y, name_y, form_y) = FORMS[first], FORMS[second]
    rows: Sequence[Mapping[str, Any]] = sheet["frontier"]
    if len(rows) < 2:
        return
    dots = [Dot(x=row[key_x], y=row[key_y]) for row in rows]
    dots += [_chosen_dot(sheet, key_x, key_y)]
    yield Text(f"frontier: the {len(rows)} plans that no other beats in both, * the one chosen", style="dim")
    across, up = Axis(name=name_x, form=form_x), Axis(name=name_y, form=form_y)
    yield from (Text(line.rstrip(), no_wrap=True) for line in scatter(dots, across, up))


def _chosen_dot(sheet: PlanSheet, key_x: str, key_y: str) -> Dot:
    best: dict[str, Any] = {**sheet["plans"][0], "chips": sheet["chips"]}
    return Dot(x=best[key_x], y=best[key_y], mark="*")


def _found(sheet: PlanSheet) -> Text:
    speed = sheet["considered"] / sheet["seconds"] if sheet["seconds"] else 0.0
    counts = f"{sheet['considered']:,} plans priced, {sheet['feasible']:,} fit"
    explained = f"; explained in {sheet['explain_seconds']:.1f} s" if sheet["explained"] else ""
    return Text(f"{counts}; {sheet['seconds']:.1f} s, {speed:,.0f} plans/s{explained}", style="dim")
