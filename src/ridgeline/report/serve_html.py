"""Turn a serving prediction into one HTML file: requests over time by replica, queues, cache; inline SVG, no script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ridgeline.core.records import dataclass
from ridgeline.core.units import format_quantity
from ridgeline.report.cells import percent
from ridgeline.report.html import HOUSE, Scale, document, escape_text, facts, label, rule, svg, table
from ridgeline.report.serve import METRICS
from ridgeline.serving.fleet.replica import Sample
from ridgeline.serving.served import Served
from ridgeline.serving.serving_prediction import ServingPrediction
from ridgeline.serving.why_slow import MEANINGS

WIDE, NAMES, RIGHT = 900, 64, 12
ROW, GAP = 3.0, 1.0  # pixels of a request
MOST_ROWS = 160  # requests that are drawn of a replica
MOST_REPLICAS = 16
MOST_POINTS = 400  # of a curve
TALL = 70  # pixels of a curve
SPANS = ("queue", "transfer", "prefill", "decode")
STYLE = (
    HOUSE
    + """
.queue { fill: #d1661f; } .prefill { fill: #2f6fb2; } .decode { fill: #5f9e6e; } .transfer { fill: #8d5fb2; }
.area { fill: var(--in); fill-opacity: .35; stroke: var(--in); } .held { fill: var(--out); fill-opacity: .3; }
.swatch { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; }
.swatch.queue { background: #d1661f; } .swatch.prefill { background: #2f6fb2; }
.swatch.decode { background: #5f9e6e; } .swatch.transfer { background: #8d5fb2; }
"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """Seconds to pixels."""

    scale: Scale
    until: float

    def __call__(self, seconds: float) -> float:
        return self.scale(min(max(seconds, 0.0), self.until))


def serving_page(found: ServingPrediction) -> str:
    """The whole page; every piece of text from a scenario is escaped."""
    scenario, metrics = found.scenario, found.metrics
    until = max(found.metrics.duration_s, 1e-9)
    axis = _Axis(scale=Scale(low=0.0, high=until, start=NAMES, end=WIDE - RIGHT), until=until)
    figures = (
        (f"{metrics.requests:,}", "requests"),
        (f"{metrics.requests_per_s:.2f}/s", "answered"),
        (f"{metrics.output_tokens_per_s:,.0f}/s", "output tokens"),
        (format_quantity(metrics.ttft.figures["p99"], "s"), "TTFT p99"),
        (format_quantity(metrics.tpot.figures["p99"], "s"), "TPOT p99"),
        (percent(metrics.hit_share), "prefix hits"),
    )
    title = f"{scenario.model.id} on {scenario.system.name}"
    body = (
        f"<h1>Requests under load: {escape_text(scenario.name or title)}</h1>{facts(figures)}"
        f"<p>{escape_text(title)}, {escape_text(scenario.plan.engine)}, {found.run.chips} chip(s).</p>"
        f"{_metrics(found)}{_where(metrics.time)}"
        f"<h2>Requests over time</h2><p>{_legend()}</p>{''.join(_replicas(found, axis))}"
    )
    return document(title=f"Ridgeline: {title}", body=body, style=STYLE)


def _metrics(prediction: ServingPrediction) -> str:
    figures = {name: getattr(prediction.metrics, key).figures for key, name in METRICS.items()}
    heads = list(prediction.metrics.ttft.figures)
    rows = [(name, *(format_quantity(row[head], "s") for head in heads)) for name, row in figures.items()]
    limits = [
        (limit.metric.upper(), f"p{limit.percentile:g}", format_quantity(limit.limit, "s"),
         format_quantity(limit.found, "s"), "kept" if limit.met else "missed")
        for limit in prediction.limits
    ]  # fmt: skip
    goals = table(("objective", "percentile", "limit", "found", ""), limits) if limits else ""
    return f"<h2>Metrics</h2>{table(('', *heads), rows)}{goals}"


def _where(parts: Mapping[str, float]) -> str:
    total = sum(parts.values()) or 1.0
    rows = [
        (name, format_quantity(value, "s"), percent(value / total), MEANINGS[name])
        for name, value in parts.items()
        if value > 0
    ]
    return f"<h2>Where the time of a request goes</h2>{table(('part', 'mean', 'share', ''), rows, text=(0, 3))}"


def _legend() -> str:
    return "".join(f'<span class="swatch {name}"></span>{name}' for name in SPANS)


def _replicas(found: ServingPrediction, axis: _Axis) -> Iterator[str]:
    served, samples = found.run.served, found.run.samples
    for replica in range(min(len(samples), MOST_REPLICAS)):
        mine = np.flatnonzero(served.replica == replica)
        if not len(mine) and not samples[replica]:
            continue
        drawn = mine[np.argsort(served.sent_s[mine], kind="stable")]
        step = max(-(-len(drawn) // MOST_ROWS), 1)
        note = f"every {step}. of {len(mine):,} requests" if step > 1 else f"{len(mine):,} requests"
        curves = "waiting and running requests, and the share of the cache held, below"
        yield f"<h2>Replica {replica}</h2><p>{note}; {curves}.</p>"
        if len(mine):
            yield f"<figure>{_requests(served, drawn[::step].tolist(), axis)}</figure>"
        if samples[replica]:
            yield f"<figure>{_curves(samples[replica], axis)}</figure>"
    if len(samples) > MOST_REPLICAS:
        yield f"<p>{len(samples) - MOST_REPLICAS} further replicas are not drawn.</p>"


def _requests(served: Served, places: Sequence[int], axis: _Axis) -> str:
    height = len(places) * (ROW + GAP) + 24
    marks = list(_ticks(axis, height - 18))
    for number, place in enumerate(places):
        y = number * (ROW + GAP)
        begin = float(served.sent_s[place])
        sentence = f"{served.ids[place]}: {served.prompt_tokens[place]} + {served.output_tokens[place]} tokens, "
        sentence += f"TTFT {format_quantity(float(served.ttft_s[place]), 's')}, "
        sentence += f"E2E {format_quantity(float(served.e2e_s[place]), 's')}"
        bars = []
        for name, seconds in _spans(served, place):
            x, end = axis(begin), axis(begin + seconds)
            begin += seconds
            if end - x > 0.05:
                bars.append(f'<rect class="{name}" x="{x:.2f}" y="{y:.1f}" width="{end - x:.2f}" height="{ROW:g}"/>')
        marks.append(f"<g><title>{escape_text(sentence)}</title>{''.join(bars)}</g>")
    return svg(WIDE, height, marks)


def _spans(served: Served, place: int) -> Iterator[tuple[str, float]]:
    """A request's life in order: what happens on its first engine is drawn before the transfer."""
    queue, prefill = float(served.queue_s[place]), float(served.prefill_s[place])
    rest = float(served.decode_s[place] + served.stalled_s[place] + served.preempted_s[place])
    yield from (("queue", queue), ("prefill", prefill), ("transfer", float(served.transfer_s[place])), ("decode", rest))


def _curves(samples: Sequence[Sample], axis: _Axis) -> str:
    """Waiting, running and cache held, one below the other."""
    columns = np.array(_thin_samples(samples), dtype=float)
    named = (("waiting", columns[:, 1], ""), ("running", columns[:, 2], ""), ("cache", columns[:, 3] * 100, " %"))
    marks: list[str] = []
    for row, (name, values, unit) in enumerate(named):
        top, bottom = row * TALL + 6, (row + 1) * TALL - 8
        high = max(float(values.max()), 1e-9)
        up = Scale(low=0.0, high=high, start=bottom, end=top)
        points = [
            f"{axis(at):.1f} {up(value):.1f}" for at, value in zip(columns[:, 0].tolist(), values.tolist(), strict=True)
        ]
        end = f"{axis(float(columns[-1, 0])):.1f}"
        d = f"M{axis(float(columns[0, 0])):.1f} {bottom}L" + "L".join(points) + f"L{end} {bottom}Z"
        marks.append(rule(d, "held" if name == "cache" else "area"))
        marks.append(label(name, NAMES - 6, bottom - 4, anchor="end", faint=False))
        marks.append(label(f"{high:,.0f}{unit}", NAMES - 6, top + 10, anchor="end"))
        marks.append(rule(f"M{NAMES} {bottom}H{WIDE - RIGHT}"))
    height = len(named) * TALL
    marks += _ticks(axis, height)
    return svg(WIDE, height + 18, marks)


def _thin_samples(samples: Sequence[Sample]) -> list[Sample]:
    """At most so many moments; of those that fall together the one with the longest queue."""
    step = max(-(-len(samples) // MOST_POINTS), 1)
    return [max(samples[at : at + step], key=lambda one: (one[1], one[3])) for at in range(0, len(samples), step)]


def _ticks(axis: _Axis, height: float) -> Iterator[str]:
    for part in range(6):
        at = axis.until * part / 5
        yield rule(f"M{axis(at):.1f} 0V{height:.1f}")
        yield label(format_quantity(at, "s", 3), axis(at), height + 14, anchor="middle")
