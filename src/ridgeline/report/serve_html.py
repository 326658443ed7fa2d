"""Draw a deployment under load as a page: first tokens and paces against the objective, then requests over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ridgeline.core.arrays import Array, Index
from ridgeline.core.records import dataclass
from ridgeline.core.units import format_duration, format_gib
from ridgeline.report import html
from ridgeline.report.cells import DASH, percent
from ridgeline.report.chart import Chart, ChartAxis, Curve, bars, chart_svg, seconds_axis
from ridgeline.report.html import Scale
from ridgeline.report.serve import METRICS, metric_rows
from ridgeline.report.skeleton import PageHead, page_document, prediction_evidence, scenario_facts
from ridgeline.search import ServedIntervals
from ridgeline.serving import MEANINGS, Sample, Served, ServingPrediction

WIDE, NAMES, RIGHT = 1180, 76, 20
HALF, HALF_TALL = 580, 320  # pixels of one of two charts side by side
ROW, GAP = 5.0, 1.5  # pixels of a request
FIRST_TOKENS = 60  # requests that are drawn until their first token
NEIGHBOURS = 60  # requests that are drawn around the longest wait of a replica
MOST_REPLICAS = 16
MOST_POINTS = 400  # of a curve
TALL = 76  # pixels of a curve
SPANS = ("queue", "prefill", "transfer", "decode")
KINDS = {"queue": "queue", "prefill": "prefill", "transfer": "transfer", "decode": "decode", "stalled": "stalled",
         "preempted": "queue"}  # fmt: skip


def serving_page(found: ServingPrediction, command: str = "", intervals: ServedIntervals | None = None) -> str:
    """The whole page; every piece of text from a scenario is escaped."""
    served = found.run.served
    parts = (
        html.facts(_figures(found)),
        _objective(found, intervals),
        _distributions(found),
        _metrics(found),
        _time(found),
        _first_tokens(served),
        *_replicas(found),
        html.list_items("Assumed", found.assumptions),
    )
    return page_document(_head(found, command, intervals), "".join(parts), "serve")


def _head(found: ServingPrediction, command: str, intervals: ServedIntervals | None) -> PageHead:
    scenario, metrics, served = found.scenario, found.metrics, found.run.served
    sent = float(np.ptp(served.sent_s)) if len(served.ids) > 1 else 0.0
    rate = f", {(len(served.ids) - 1) / sent:.3g}/s sent" if sent else ", all at once"
    prompts, outputs = float(served.prompt_tokens.mean()), float(served.output_tokens.mean())
    load = f"{metrics.requests:,} requests{rate}; mean prompt {prompts:,.0f}, mean output {outputs:,.0f} tokens"
    replicas = ", ".join(
        f"{instance.count} replica{'s' * (instance.count > 1)}"
        + ("" if instance.role == "both" else f" for {instance.role}")
        for instance in found.instances
    )
    chips = f"{found.run.chips} chip{'s' * (found.run.chips > 1)}"
    mesh = " ".join(f"{axis}={degree}" for axis, degree in found.title.mesh.items()) or "one chip"
    return PageHead(
        verb="timeline",
        question=f"How does {scenario.model.id} on {chips} of {scenario.system.chip.id} serve its requests?",
        answer=_answer(found),
        certainty=_certainty(intervals),
        subject=(
            ("Scenario", scenario.name),
            *scenario_facts(scenario, plan=""),
            ("Deployment", f"{replicas} of {mesh}, {scenario.plan.precision.compute.id}, under {scenario.plan.engine}"),
            ("Workload", load),
        ),
        evidence=prediction_evidence(),
        command=command,
    )


def _answer(found: ServingPrediction) -> str:
    metrics = found.metrics
    limits = [
        f"{limit.metric.upper()} p{limit.percentile:g} is {format_duration(limit.found)}, "
        f"{'within' if limit.met else 'beyond'} its limit of {format_duration(limit.limit)}"
        for limit in found.limits
    ]
    if not limits:
        limits = [f"{METRICS[name]} p99 is {format_duration(getattr(metrics, name).figures['p99'])}"
                  for name in ("ttft", "tpot")]  # fmt: skip
    rate = f"{metrics.requests_per_s:.3g} requests/s and {metrics.output_tokens_per_s:,.0f} output tokens/s"
    return f"{'; '.join(limits)}; {rate} are answered."


def _certainty(intervals: ServedIntervals | None) -> str:
    if intervals is None:
        return "No interval was computed."
    spans = ", ".join(
        f"{METRICS[limit.metric]} p{limit.percentile:g} {_interval(limit.low_s, limit.high_s)}"
        for limit in intervals.limits
        if limit.metric in ("ttft", "tpot")
    )
    return (
        f"{spans} with {intervals.coverage:.0%} probability: the same requests again with steps as slow and as fast "
        f"as predictions were off in {intervals.rows:,} measured runs of serving."
    )


def _interval(low_s: float, high_s: float) -> str:
    return f"{format_duration(low_s)} to {format_duration(high_s)}"


def _figures(found: ServingPrediction) -> Iterator[tuple[str, str]]:
    metrics = found.metrics
    yield f"{metrics.requests:,}", f"requests in {format_duration(metrics.duration_s)}"
    yield f"{metrics.requests_per_s:.3g}/s", "answered"
    yield f"{metrics.output_tokens_per_s:,.0f}/s", "output tokens"
    yield format_duration(metrics.ttft.figures["p99"]), "TTFT p99"
    yield format_duration(metrics.tpot.figures["p99"]), "TPOT p99"
    if metrics.goodput is not None:
        yield f"{metrics.goodput:.3g}/s", f"goodput, {percent(found.goodput_share)} of all"
    if metrics.hit_share:
        yield percent(metrics.hit_share), "prefix hits"
    if found.preemptions:
        yield f"{found.preemptions:,}", "preemptions"
    if found.cost_per_million_tokens_usd is not None:
        yield f"${found.cost_per_million_tokens_usd:,.2f}", "per million output tokens"
    memory = found.instances[0].memory
    yield f"{memory.tokens:,}", f"tokens in a replica's cache, {format_gib(memory.kv_bytes)}"


# -- tables and distributions -----------------------------------------------------------------------------------------


def _objective(found: ServingPrediction, intervals: ServedIntervals | None) -> str:
    spans = {limit.metric: _interval(limit.low_s, limit.high_s) for limit in intervals.limits} if intervals else {}
    rows = [
        (f"{limit.metric.upper()} p{limit.percentile:g}", format_duration(limit.limit), format_duration(limit.found),
         spans.get(limit.metric, DASH), html.objective_verdict(met=limit.met))
        for limit in found.limits
    ]  # fmt: skip
    return html.section("The objective", ("", "limit", "predicted", "interval, 90 %", ""), rows, text=(4,))


def _distributions(found: ServingPrediction) -> str:
    """How many requests are within which time, for the first token and for the pace."""
    served = found.run.served
    if len(served.ids) < 2:
        return ""
    figures = "".join(
        f"<figure>{_distribution(found, name, values)}</figure>"
        for name, values in (("ttft", served.ttft_s), ("tpot", served.tpot_s))
    )
    note = "The curve is the share of requests within a time; the dashed line is the objective's limit."
    return f'<h2>TTFT and TPOT against the objective</h2><div class="side">{figures}</div><p class="note">{note}</p>'


def _distribution(found: ServingPrediction, name: str, values: Array) -> str:
    shares = np.linspace(0.0, 1.0, 101)
    seconds = np.quantile(values, shares)
    curve = [(max(float(at), 0.0), float(share) * 100) for at, share in zip(seconds, shares, strict=True)]
    curves = [Curve(points=curve)]
    limit = found.kept.get(name)
    if limit is not None:
        words = f"limit {format_duration(limit.limit)}"
        curves.append(Curve(points=[(limit.limit, 0.0), (limit.limit, 100.0)], kind="limit", name=words))
    most = max(float(seconds[-1]), limit.limit if limit is not None else 0.0)
    chart = Chart(
        across=seconds_axis(f"{METRICS[name]} of a request", most),
        up=ChartAxis(name="requests within it", form="{:.0f} %".format),
        curves=curves,
        from_zero=True,
        wide=HALF,
        tall=HALF_TALL,
    )
    return chart_svg(chart, f"Distribution of {METRICS[name]}")


def _metrics(found: ServingPrediction) -> str:
    heads, rows = metric_rows(found)
    return f"<h2>Metrics</h2>{html.table(('', *heads), rows)}"


def _time(found: ServingPrediction) -> str:
    parts = found.metrics.time
    rows = [(name, seconds, KINDS[name], MEANINGS[name]) for name, seconds in parts.items() if seconds > 0]
    return f"<h2>Where the time of a request goes, on average</h2>{bars(rows, sum(parts.values()))}"


# -- requests over time -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """Seconds to pixels of a part of a run."""

    scale: Scale

    @classmethod
    def of(cls, begin: float, end: float) -> _Window:
        return cls(scale=Scale(low=begin, high=max(end, begin + 1e-9), start=NAMES, end=WIDE - RIGHT))

    def __call__(self, seconds: float) -> float:
        return self.scale(min(max(seconds, self.scale.low), self.scale.high))

    def rules(self, height: float) -> Iterator[str]:
        """Round instants with their names below."""
        axis = seconds_axis("", self.scale.high)
        for at in self.scale.ticks(8, axis.unit):
            yield html.rule(f"M{self(at):.1f} 0V{height:.1f}")
            yield html.label(axis.form(at), self(at), height + 15, anchor="middle")


def _key(kinds: Sequence[str]) -> str:
    """A legend of what is drawn, and of nothing else."""
    words = "".join(
        f'<span><svg class="swatch" viewBox="0 0 1 1" aria-hidden="true"><rect class="{kind}" width="1" height="1"/>'
        f"</svg>{kind}</span>"
        for kind in kinds
    )
    return f'<p class="key">{words}</p>'


def _first_tokens(served: Served) -> str:
    """Requests until their first token, each from when it was sent; the slowest first."""
    if not len(served.ids):
        return ""
    order = np.argsort(-served.ttft_s, kind="stable")
    count = min(FIRST_TOKENS, len(order))
    places = order[np.unique(np.linspace(0, len(order) - 1, count).astype(int))].tolist()
    window = _Window.of(0.0, float(served.ttft_s.max()))
    rows = [
        (_sentence(served, place), [part for part in _spans(served, place, 0.0) if part[0] != "decode"])
        for place in places
    ]
    kinds = [
        name for name in SPANS if any(name == part[0] and part[2] > part[1] for _, parts in rows for part in parts)
    ]
    caption = (
        f"{len(places)} of {len(order):,} requests, from the slowest first token to the fastest; seconds since sent. "
        "Point at a request for its numbers."
    )
    return (
        f"<h2>Until the first token</h2>{_key(kinds)}<figure>{_request_rows(rows, window)}"
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _replicas(found: ServingPrediction) -> Iterator[str]:
    served, samples = found.run.served, found.run.samples
    for replica in range(min(len(samples), MOST_REPLICAS)):
        places = np.flatnonzero(served.replica == replica)
        if not len(places) and not samples[replica]:
            continue
        yield f"<h2>Replica {replica}</h2>"
        if samples[replica]:
            window = _Window.of(0.0, found.metrics.duration_s)
            yield f"<figure>{_curves(samples[replica], window)}"
            yield "<figcaption>Requests that wait and run, and the share of the cache in use.</figcaption></figure>"
        if len(places):
            yield _neighbours(served, places)
    if len(samples) > MOST_REPLICAS:
        yield f"<p>{len(samples) - MOST_REPLICAS} further replicas are not drawn.</p>"


def _neighbours(served: Served, places: Index) -> str:
    """The requests of a replica around the one that waited longest, over time."""
    order = places[np.argsort(served.sent_s[places], kind="stable")]
    longest = int(np.argmax(served.ttft_s[order]))
    first = max(0, min(longest - NEIGHBOURS // 2, len(order) - NEIGHBOURS))
    part = order[first : first + NEIGHBOURS].tolist()
    begin, end = float(served.sent_s[part].min()), float(served.finished_s[part].max())
    rows = [(_sentence(served, place), list(_spans(served, place, float(served.sent_s[place])))) for place in part]
    kinds = [
        name for name in SPANS if any(name == span[0] and span[2] > span[1] for _, spans in rows for span in spans)
    ]
    caption = (
        f"{len(part)} of its {len(order):,} requests, those sent around the longest wait for a first token "
        f"({format_duration(float(served.ttft_s[order[longest]]))}); seconds since the start."
    )
    drawing = _request_rows(rows, _Window.of(begin, end))
    return f"{_key(kinds)}<figure>{drawing}<figcaption>{caption}</figcaption></figure>"


def _sentence(served: Served, place: int) -> str:
    return (
        f"{served.ids[place]}: {served.prompt_tokens[place]} + {served.output_tokens[place]} tokens, "
        f"TTFT {format_duration(float(served.ttft_s[place]))}, E2E {format_duration(float(served.e2e_s[place]))}"
    )


RequestSpan = tuple[str, float, float]  # what, from when, until when


def _spans(served: Served, place: int, begin: float) -> Iterator[RequestSpan]:
    """A request's life in order: what happens on its first engine is drawn before the transfer."""
    queue, prefill = float(served.queue_s[place]), float(served.prefill_s[place])
    remainder = float(served.decode_s[place] + served.stalled_s[place] + served.preempted_s[place])
    moved = float(served.transfer_s[place])
    for name, seconds in (("queue", queue), ("prefill", prefill), ("transfer", moved), ("decode", remainder)):
        yield name, begin, begin + seconds
        begin += seconds


def _request_rows(rows: Sequence[tuple[str, Sequence[RequestSpan]]], window: _Window) -> str:
    height = len(rows) * (ROW + GAP) + 4
    marks = list(window.rules(height))
    for number, (sentence, spans) in enumerate(rows):
        y = number * (ROW + GAP)
        shapes = "".join(
            f'<rect class="{name}" x="{window(begin):.1f}" y="{y:.1f}" '
            f'width="{max(window(end) - window(begin), 0.4):.1f}" height="{ROW:g}"/>'
            for name, begin, end in spans
            if end > begin
        )
        marks.append(f"<g><title>{html.escape_text(sentence)}</title>{shapes}</g>")
    return html.svg(WIDE, height + 22, marks, "Requests over time")


def _curves(samples: Sequence[Sample], window: _Window) -> str:
    """Waiting, running and cache in use, one below the other."""
    columns = np.array(_thin_samples(samples), dtype=float)
    named = (("waiting", columns[:, 1], ""), ("running", columns[:, 2], ""), ("cache", columns[:, 3] * 100, " %"))
    height = len(named) * TALL
    marks = list(window.rules(height))
    for row, (name, values, unit) in enumerate(named):
        top, bottom = row * TALL + 10, (row + 1) * TALL - 8
        up = Scale(low=0.0, high=max(float(values.max()), 1e-9), start=bottom, end=top).with_round_ends(2)
        points = [
            f"{window(at):.1f} {up(value):.1f}"
            for at, value in zip(columns[:, 0].tolist(), values.tolist(), strict=True)
        ]
        first, last = window(float(columns[0, 0])), window(float(columns[-1, 0]))
        d = f"M{first:.1f} {bottom}L{'L'.join(points)}L{last:.1f} {bottom}Z"
        marks.append(html.rule(d, "cache" if name == "cache" else "area"))
        marks.append(html.label(name, NAMES - 8, bottom - 14, anchor="end", faint=False))
        marks.append(html.label(f"{up.high:,.3g}{unit}", NAMES - 8, top + 5, anchor="end"))
        marks.append(html.rule(f"M{NAMES} {bottom}H{WIDE - RIGHT}"))
    return html.svg(WIDE, height + 22, marks, "Waiting and running requests, and the cache in use")


def _thin_samples(samples: Sequence[Sample]) -> list[Sample]:
    """At most so many moments; of those that fall together the one with the longest queue."""
    step = max(-(-len(samples) // MOST_POINTS), 1)
    return [
        max(samples[at : at + step], key=lambda sample: (sample[1], sample[3])) for at in range(0, len(samples), step)
    ]
