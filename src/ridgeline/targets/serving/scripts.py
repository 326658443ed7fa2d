"""Turn a serving scenario into the scripts that start one replica and load it, and such scripts back into words.

`launch.sh` starts one replica; where there are several, REPLICA says which, and each takes its own chips and port. A
replica that spans nodes is started on each of them, with NODE_RANK and MASTER_ADDR from the environment. `bench.sh`
runs the load generator of vLLM, which works against any server with OpenAI's interface; what it cannot generate (trace
times, on-off, conversations) is lost and said so.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import ClosedLoop, Constant, Gamma, OnOff, Poisson, Serve, Sessions, TraceFile
from ridgeline.targets.imports.run_files import checkout_of
from ridgeline.targets.imports.shell_eval import read_script
from ridgeline.targets.imports.shell_expand import Script
from ridgeline.targets.launchers.launch import ON_NODE, comment, header
from ridgeline.targets.ledger import Ledger, Lose, Piece, Say, export_of
from ridgeline.targets.options import options
from ridgeline.targets.serving.manifests import manifest_scripts
from ridgeline.targets.target import Export, Files

CONTAINERS = ("docker", "podman", "nerdctl")
WRAPPERS = 12  # words before a program's name: env, exec, numactl and the like; a container has many more
SERVER = ("HOST=${HOST:-127.0.0.1}", "PORT=${PORT:-8000}")
VISIBLE = {"NVIDIA": "CUDA_VISIBLE_DEVICES", "AMD": "HIP_VISIBLE_DEVICES", "Huawei": "ASCEND_RT_VISIBLE_DEVICES"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLaunch:
    """How one replica is started.

    program    shell words before the arguments: the server and the model
    arguments  options by name with their dashes
    rendezvous shell words behind them that a replica on several nodes needs
    nodes      that one replica spans
    chips      of one replica
    """

    program: str
    arguments: JsonMapping
    weights: str
    replicas: int
    chips: int
    nodes: int = 1
    rendezvous: str = ""


def words_of(option: str, value: object) -> list[str]:
    """An option as words of a command line; a switch that is off as its `--no-` form.

    >>> words_of("--x", True), words_of("--x", False), words_of("--y", ("a", "b c"))
    (['--x'], ['--no-x'], ['--y', 'a', 'b c'])
    """
    if isinstance(value, bool):
        return [option if value else f"--no-{option[2:]}"]
    values = value if isinstance(value, tuple) else (value,)
    return [option, *(f"{part:g}" if isinstance(part, float) else str(part) for part in values)]


def array(name: str, values: JsonMapping) -> str:
    """A shell array of options, one on each line."""
    lines = [f"    {shlex.join(words_of(option, value))}\n" for option, value in values.items()]
    return f"{name}=(\n{''.join(lines)})\n"


def model_line(weights: str) -> str:
    """MODEL from the environment, else the published weights; without any it has to be set."""
    if weights:
        return f"MODEL=${{MODEL:-{weights}}}\n"
    return 'MODEL=${MODEL:?"set MODEL to the folder of the weights"}\n'


def launch_script(scenario: Scenario, how: ServerLaunch, title: str) -> str:
    """`launch.sh`."""
    vendor = scenario.system.chip.vendor
    lines = [model_line(how.weights).rstrip(), *SERVER]
    if how.replicas > 1:
        last = how.replicas - 1
        lines += [
            f"REPLICAS={how.replicas}",
            f"REPLICA=${{REPLICA:-0}}  # this script starts one replica: run it with REPLICA=0 to {last}",
            f"CHIPS={how.chips}  # of a replica",
            "PORT=$((PORT + REPLICA))",
        ]
        if how.nodes == 1 and vendor in VISIBLE:
            share_each = max(1, scenario.system.node // how.chips)
            lines.append(f"FIRST=$((REPLICA % {share_each} * CHIPS))")
            lines.append(f'export {VISIBLE[vendor]}="$(seq -s, "$FIRST" $((FIRST + CHIPS - 1)))"')
    rendezvous = ""
    if how.nodes > 1:
        lines += [
            "NODE_RANK=${NODE_RANK:-0}",
            "MASTER_ADDR=${MASTER_ADDR:-localhost}",
            "MASTER_PORT=${MASTER_PORT:-29500}",
        ]
        rendezvous = f" \\\n    {how.rendezvous}"
    head = comment(header(scenario, title))
    argument_array = f"{array('ARGS', how.arguments)}\n" if how.arguments else ""
    argument_words = ' "${ARGS[@]}"' if how.arguments else ""
    body = f'{argument_array}{how.program} \\\n   {argument_words}{rendezvous} "$@"\n'
    return f"#!/bin/bash\n{head}set -euo pipefail\n\n" + "\n".join(lines) + f"\n\n{body}"


def scripts_in(files: Files) -> dict[str, Script]:
    """Every shell script among the files, followed without being run; a bare command line counts as one, and so does
    what a container of a manifest runs."""
    endings = (".sh", ".sbatch", ".slurm", ".txt", ".bash")
    texts = {name: text for name, text in files.items() if name.endswith(endings) or "." not in name}
    place = checkout_of(files)
    return {name: read_script(text, place) for name, text in {**texts, **manifest_scripts(files)}.items()}


def commands_of(files: Files, *programs: tuple[str, ...]) -> list[tuple[Script, list[str]]]:
    """Commands that start one of the programs, with the words behind its name; wrappers before it are skipped.

    >>> [words for _, words in commands_of({"a.sh": "exec vllm serve m --x 1"}, ("vllm", "serve"))]
    [['m', '--x', '1']]
    >>> [words for _, words in commands_of({"a.sh": "docker run -p 1:1 vllm/vllm-openai:v1 --x 1"}, ("vllm-openai",))]
    [['--x', '1']]
    """
    commands = []
    for script in scripts_in(files).values():
        for command in script.commands:
            for program in programs:
                at = _begins(command, program)
                if at is not None:
                    commands.append((script, command[at + len(program) :]))
                    break
    return commands


def _begins(command: Sequence[str], program: tuple[str, ...]) -> int | None:
    """Where a command names a program, by a path or as the image of a container."""
    container_names = any(word.rpartition("/")[2] in CONTAINERS for word in command[:WRAPPERS])
    for at in range(min(len(command) - len(program) + 1, len(command) if container_names else WRAPPERS)):
        words = [word.rpartition("/")[2] for word in command[at : at + len(program)]]
        if container_names and len(program) == 1:
            words = [words[0].partition(":")[0]]
        if tuple(words) == program:
            return at
    return None


def replicas_in(script: Script) -> int:
    """REPLICAS of a script that Ridgeline wrote; 1 where there is none."""
    text = " ".join(script.variables.get("REPLICAS", ["1"]))
    return int(text) if re.fullmatch(r"[1-9]\d{0,5}", text) else 1


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


def _say(option: str, value: object, *paths: str) -> Say:
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


def server_export(
    id: str, scenario: Scenario, ledger: Ledger, how: ServerLaunch, fields: Files | None = None
) -> Export:
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


def _finite(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


def _number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit() and len(text) < 20
