"""Turn a serve workload into the words of `vllm bench serve`, and such words back into a workload.

The load generator of vLLM works against any server with OpenAI's interface, so every target's export writes `bench.sh`
with it. What it cannot generate (trace times, on-off, conversations) is lost and said so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.serve import ClosedLoop, Constant, Gamma, OnOff, Poisson, Serve, Sessions, TraceFile
from ridgeline.targets.launchers.launch import ON_NODE, comment, header
from ridgeline.targets.ledger import Ledger, Lose, Piece, Say, export_of
from ridgeline.targets.options import options
from ridgeline.targets.serving.launch import Launch, array, launch_script, model_line
from ridgeline.targets.target import Export, Files

BENCH = "bench.sh"
PREFIX = "bench:"  # before the options of the load generator in a ledger
EVEN = 1000.0  # burstiness of gaps that are nearly equal
MILLI = 1000
LIMITS = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el"}  # of an objective, as `--goodput` calls them


def load_pieces(work: Serve) -> Iterator[Piece]:
    """What `bench.sh` says of the workload."""
    yield from _arrivals(work)
    yield from _lengths(work)
    yield _say("num-prompts", work.sequences, "workload.requests")
    yield _say("seed", work.seed, "workload.seed")
    limits = [
        f"{LIMITS[name]}:{seconds * MILLI:g}" for name, seconds in work.objective.limits.items() if name in LIMITS
    ]
    paths = [f"workload.objective.{name}" for name in work.objective.limits if name in LIMITS]
    if limits:
        yield _say("goodput", tuple(limits), *paths)
    yield Lose("workload.objective.itl", "goodput of `vllm bench serve` takes ttft, tpot and e2el")
    yield _say("metric-percentiles", f"50,90,{work.objective.percentile:g}", "workload.objective.percentile")
    if work.max_new_tokens is not None:
        why = "answers are made to have the length that is asked for (--ignore-eos)"
        yield Lose("workload.max_new_tokens", why)


def _arrivals(work: Serve) -> Iterator[Piece]:
    match work.arrivals:
        case Poisson(rate=rate):
            yield _say("request-rate", rate, "workload.arrivals.kind", "workload.arrivals.rate")
        case Gamma(rate=rate, burstiness=burstiness):
            yield _say("request-rate", rate, "workload.arrivals.rate")
            yield _say("burstiness", burstiness, "workload.arrivals.kind", "workload.arrivals.burstiness")
        case Constant(rate=rate):
            yield _say("request-rate", rate, "workload.arrivals.rate")
            yield _say("burstiness", EVEN)
            yield Lose("workload.arrivals.kind", f"gaps are drawn: written with burstiness {EVEN:g}, nearly even")
        case ClosedLoop(concurrency=users):
            yield _say("max-concurrency", users, "workload.arrivals.kind", "workload.arrivals.concurrency")
            if work.arrivals.think:
                yield Lose("workload.arrivals.think", "the next request is sent at once")
            else:
                yield _say("max-concurrency", users, "workload.arrivals.think")
        case OnOff(rate=rate) | Sessions(rate=rate):
            yield _say("request-rate", rate)
            yield Lose("workload.arrivals.*", "written as Poisson arrivals of that rate")
        case TraceFile():
            yield Lose("workload.arrivals.*", "the trace is not part of the export: replay it with a client of its own")


def _lengths(work: Serve) -> Iterator[Piece]:
    if work.lengths:
        yield Lose("workload.lengths", "lengths are random around one mean: use --dataset-name with a file of yours")
    if work.isl is None or work.osl is None:
        return
    yield _say("random-input-len", work.isl - work.prefix, "workload.isl", "workload.prefix")
    yield _say("random-output-len", work.osl, "workload.osl")
    yield _say("random-range-ratio", work.range_ratio, "workload.range_ratio")
    if work.prefix:
        yield _say("random-prefix-len", work.prefix, "workload.prefix")


def _say(option: str, value: Any, *paths: str) -> Say:
    return Say(f"{PREFIX}--{option}", value, *paths)


def bench_script(scenario: Scenario, said: JsonMapping, title: str, weights: str) -> str:
    """The script that loads a server as the workload says; the result is a JSON file with every request."""
    load_options = {name.removeprefix(PREFIX): value for name, value in said.items() if name.startswith(PREFIX)}
    head = comment(header(scenario, title))
    return (
        f"#!/bin/bash\n{head}# load a server that launch.sh has started: `bash {BENCH} --result-filename run1.json`\n"
        f"set -euo pipefail\n\n{model_line(weights)}HOST=${{HOST:-127.0.0.1}}\nPORT=${{PORT:-8000}}\n\n"
        f"{array('LOAD', load_options)}\n"
        'vllm bench serve --backend openai --model "$MODEL" --host "$HOST" --port "$PORT" \\\n'
        "    --dataset-name random --ignore-eos --save-result --save-detailed \\\n"
        '    "${LOAD[@]}" "$@"\n'
    )


def server_export(id: str, scenario: Scenario, ledger: Ledger, how: Launch, fields: Files | None = None) -> Export:
    """launch.sh and bench.sh of one server, behind a file of its own where it has one."""
    title = options(id).title
    load = bench_script(scenario, ledger.options, title, how.weights)
    return export_of(id, {**(fields or {}), ON_NODE: launch_script(scenario, how, title), BENCH: load}, ledger)


def read_load(options: JsonMapping) -> JsonObject:
    """The workload that options of `vllm bench serve` describe; options by name without dashes.

    >>> read_load({"request-rate": 2.0, "random-input-len": 100, "random-output-len": 20, "num-prompts": 40})
    {'kind': 'serve', 'arrivals': {'kind': 'poisson', 'rate': 2.0}, 'requests': 40, 'isl': 100, 'osl': 20}
    """
    rate, users = options.get("request-rate", "inf"), options.get("max-concurrency")
    work: JsonObject = {"kind": "serve"}
    burstiness = options.get("burstiness", 1.0)
    if isinstance(users, int) and not _finite(rate):
        work["arrivals"] = {"kind": "closed-loop", "concurrency": users}
    elif _finite(rate) and burstiness != 1.0:
        work["arrivals"] = {"kind": "gamma", "rate": float(rate), "burstiness": float(burstiness)}
    elif _finite(rate):
        work["arrivals"] = {"kind": "poisson", "rate": float(rate)}
    prefix = options.get("random-prefix-len", 0)
    work |= {"requests": options.get("num-prompts", 1000), "isl": options.get("random-input-len", 1024) + prefix}
    work["osl"] = options.get("random-output-len", 128)
    extra = {"range_ratio": options.get("random-range-ratio", 0.0), "prefix": prefix, "seed": options.get("seed", 0)}
    work |= {name: value for name, value in extra.items() if value}
    objective = _objective(options)
    return work | ({"objective": objective} if objective else {})


def _objective(options: JsonMapping) -> JsonObject:
    goals = options.get("goodput", ())
    objective: JsonObject = {}
    names = {word: name for name, word in LIMITS.items()}
    for word in goals if isinstance(goals, list | tuple) else (goals,):
        name, _, limit = str(word).partition(":")
        if name in names and _number(limit):
            objective[names[name]] = f"{float(limit):g} ms"
    shares = [share for share in str(options.get("metric-percentiles", "")).split(",") if _number(share)]
    if objective and shares and float(shares[-1]) != 99.0:
        objective["percentile"] = float(shares[-1])
    return objective


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def _number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit() and len(text) < 20
