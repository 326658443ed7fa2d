"""Turn a run into the scripts that start it on nodes, and words such as `time=4h` into what a scheduler is asked."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from math import gcd
from types import MappingProxyType

from ridgeline.core.errors import InputError, Problem, UnitError, not_among
from ridgeline.core.units import parse_quantity
from ridgeline.hardware.system import System
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.targets.decisions import decisions_of
from ridgeline.targets.ledger import Fixed, Ledger, Piece, export_of, gather
from ridgeline.targets.options import options
from ridgeline.targets.registry import LAUNCHERS
from ridgeline.targets.target import Export, Files, written_words
from ridgeline.targets.vendors import runs_on, vendor_of
from ridgeline.version import __version__

LONGEST = 30 * 86400.0  # seconds
IMAGE = "pytorch/pytorch:latest"  # where none is asked for; the files say that it is to be replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One job.

    time       seconds after which it is stopped
    partition  Slurm's partition, the queue of Kueue or Volcano, the compute of Azure ML
    account    who pays, where the scheduler asks
    image      the container that the software is in
    output     a folder for logs (Slurm), a claim of a volume (Kubernetes), a bucket (SkyPilot): mounted at /output
    """

    time: float | None = None
    partition: str | None = None
    account: str | None = None
    image: str | None = None
    output: str | None = None


def job_request(words: Mapping[str, str]) -> JobRequest:
    """The request that words by name make.

    >>> job_request({"time": "90 min", "partition": "gpu"})
    JobRequest(time=5400.0, partition='gpu', account=None, image=None, output=None)
    """
    field_names = [field.name for field in fields(JobRequest)]
    for name, value in words.items():
        if name not in field_names:
            raise InputError(not_among("--job", name, field_names))
        if not re.fullmatch(r"[\w@%+=:,./ -]{1,200}", value):
            expected_text = "letters, digits and any of @%+=:,./-"
            raise InputError(Problem(path=f"--job {name}", given=value[:60], expected=expected_text))
    plain = {name: value for name, value in words.items() if name != "time"}
    return JobRequest(time=_seconds(words["time"]) if "time" in words else None, **plain)


def _seconds(text: str) -> float:
    try:
        seconds_given = parse_quantity(text, "s")
    except UnitError:
        seconds_given = 0.0
    if not 1 <= seconds_given <= LONGEST:
        raise InputError(Problem(path="--job time", given=text[:60], expected="a time such as 4h, 1 s to 30 d"))
    return seconds_given


def job_name(scenario: Scenario) -> str:
    """A name that every scheduler takes: lower case, digits and dashes, 40 characters."""
    text = re.sub(r"[^a-z0-9]+", "-", (scenario.name or scenario.model.id).lower()).strip("-")[:40].strip("-")
    return text if re.match(r"[a-z]", text) else f"run-{text}".strip("-")


def clock(seconds: float) -> str:
    """Slurm's hours, minutes and seconds.

    >>> clock(93784.0)
    '26:03:04'
    """
    whole_seconds = int(seconds)
    return f"{whole_seconds // 3600:02d}:{whole_seconds % 3600 // 60:02d}:{whole_seconds % 60:02d}"


TORCHRUN = "torchrun"
ON_NODE = "launch.sh"
SLURM = "launch.sbatch"
LEADER = ("NODE_RANK=${NODE_RANK:-0}", "MASTER_ADDR=${MASTER_ADDR:-localhost}", "MASTER_PORT=${MASTER_PORT:-29500}")
TIME = "04:00:00"  # of a first run
# of several nodes: a leader that nobody named would leave this node waiting for the others
NO_FILES: Files = MappingProxyType({})
MANY = "{} nodes: sbatch launch.sbatch, or on each node NODE_RANK=0... MASTER_ADDR=first bash launch.sh"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCommand:
    """What runs on every node.

    words        the program and its arguments, one word each; `tail` is shell text put after them unquoted, for an
                 array that a script defines (`"${ARGS[@]}"`)
    before       shell text put in front of the command: arrays it uses
    environment  variables to set first
    setup        shell lines put behind the variables: a note, or what else is made from them
    rendezvous   the script has variables that say how many nodes there are, which this is and which leads
    per_chip     one process for each chip, started by torchrun; otherwise one process for each node
    """

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    setup: tuple[str, ...] = ()
    rendezvous: bool = True
    per_chip: bool = True
    tail: str = ""
    before: str = ""


def nodes_of(system: System) -> tuple[int, int]:
    """Nodes, and chips used on each: as many as share a host, where the system's chips fill hosts evenly.

    >>> import ridgeline
    >>> nodes_of(ridgeline.system("64xh100-sxm")), nodes_of(ridgeline.system("256xgb200-nvl72"))
    ((8, 8), (64, 4))
    """
    largest = min(system.node, system.tiers[0].chips) if system.tiers else system.node
    share_each = largest if system.chips % largest == 0 else gcd(largest, system.chips)
    return system.chips // share_each, share_each


def header(scenario: Scenario, title: str) -> tuple[str, ...]:
    """What every written file says at its top, without the sign that starts a comment; `system_in` reads it back."""
    return (
        f"Written by Ridgeline {__version__} for {title}.",
        f"model: {_tame(scenario.model.id)}",
        f"system: {_tame(scenario.system.name)}",
    )


def comment(lines: Iterable[str], sign: str = "#") -> str:
    """Lines as comments, each ended."""
    return "".join(f"{sign} {line}\n" for line in lines)


def system_in(texts: Mapping[str, str]) -> str | None:
    """The system that a file written by Ridgeline names."""
    return next(written_words(texts, r"^\W{0,4}system: ([\w.:-]{1,128})\s*$"), None)


def account_run(id: str, scenario: Scenario, pieces: Iterable[Piece]) -> Ledger:
    """The account of a training run by what a target says of it; chips that the target does not run on are lost."""
    chips = Fixed("system.chips", scenario.system.chips, "ranks that launch.sh starts")
    ranks = Fixed("plan.dp", scenario.plan.mesh.dp, "the ranks that the other axes leave")
    return gather(decisions_of(scenario), (chips, ranks, *runs_on(scenario, id), *pieces))


def export_run(
    id: str, scenario: Scenario, ledger: Ledger, files: Files, command: NodeCommand | Files, after: Files = NO_FILES
) -> Export:
    """A training run as a target's files, all but JSON with a head, around the scripts that launch it."""
    title = options(id).title
    head = comment(header(scenario, title))
    if isinstance(command, NodeCommand):
        command = {ON_NODE: on_node(scenario, command, title), SLURM: slurm(scenario, title)}
    before, behind = (
        {name: text if name.endswith(".json") else head + text for name, text in texts.items()}
        for texts in (files, after)
    )
    return export_of(id, {**before, **command, **behind}, ledger)


def on_node(scenario: Scenario, command: NodeCommand, title: str) -> str:
    """A script that starts this node's share; NODE_RANK, MASTER_ADDR and MASTER_PORT come from its environment."""
    nodes, chips_per_node = nodes_of(scenario.system)
    lines = [f"NNODES=${{NNODES:-{nodes}}}", *leader(nodes)] if command.rendezvous else []
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(command.environment.items())]
    lines += command.setup
    starter = []
    if command.per_chip:
        starter = [
            TORCHRUN, f"--nproc-per-node={chips_per_node}", '--nnodes="$NNODES"', '--node-rank="$NODE_RANK"',
            '--master-addr="$MASTER_ADDR"', '--master-port="$MASTER_PORT"',
        ]  # fmt: skip
    words = [*starter, *(shlex.quote(word) for word in command.words), *([command.tail] if command.tail else [])]
    body = " \\\n    ".join(words)
    head = comment(header(scenario, title))
    before = f"{command.before.rstrip()}\n\n" if command.before else ""
    start = "#!/bin/bash\n" + head + "set -euo pipefail\n\n" + "\n".join(lines)
    return f'{start}\n\n{before}cd "$(dirname "$0")"\n{body} "$@"\n'


def leader(nodes: int, port: int = 29500) -> tuple[str, ...]:
    """Which node this is and which leads, from the environment; one of several has to be told.

    >>> leader(1)[1], leader(8)[1].startswith("MASTER_ADDR=${MASTER_ADDR:?8 nodes")
    ('MASTER_ADDR=${MASTER_ADDR:-localhost}', True)
    """
    rank, address, _ = LEADER
    message = f"MASTER_ADDR=${{MASTER_ADDR:?{MANY.format(nodes)}}}" if nodes > 1 else address
    return (rank, message, f"MASTER_PORT=${{MASTER_PORT:-{port}}}")


def slurm(scenario: Scenario, title: str, job: JobRequest | None = None) -> str:
    """A batch script that runs the node's script once on each node, from the folder it lies in.

    Slurm runs a copy of it, so it asks for the place of the original. CONTAINER names an image for every node (pyxis).
    The one task of a node is bound to no core: its ranks are.
    """
    request = job or JobRequest()
    return (
        f"#!/bin/bash\n{comment(header(scenario, title))}"
        + "".join(f"#SBATCH {word}\n" for word in _sbatch_words(scenario, request))
        + "# CONTAINER=IMAGE sbatch launch.sbatch runs every node in an image (pyxis), this folder inside it\n"
        + "".join(f"{line}\n" for line in _open(request))
        + "set -euo pipefail\n\n"
        + (f"CONTAINER=${{CONTAINER:-{request.image}}}\n" if request.image else "")
        + 'HERE=$(scontrol show job "$SLURM_JOB_ID" | sed -n "s/^ *Command=//p" | sed -n 1p)\n'
        'HERE=$(dirname "${HERE%% *}")\n'
        f'[ -f "$HERE/{ON_NODE}" ] || HERE=$SLURM_SUBMIT_DIR\n'
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)\n'
        "export MASTER_ADDR MASTER_PORT=${MASTER_PORT:-29500} NNODES=$SLURM_NNODES\n"
        'srun --kill-on-bad-exit=1 --cpu-bind=none --chdir="$HERE" \\\n'
        '    ${CONTAINER:+--container-image="$CONTAINER" --container-mounts="$HERE:$HERE"} \\\n'
        f'    bash -c \'NODE_RANK=$SLURM_NODEID exec bash "$0" "$@"\' "$HERE/{ON_NODE}" "$@"\n'
    )


def _sbatch_words(scenario: Scenario, job: JobRequest) -> Iterator[str]:
    """What Slurm is asked for."""
    nodes, chips_per_node = nodes_of(scenario.system)
    yield from (f"--job-name={job_name(scenario)}", f"--nodes={nodes}", "--ntasks-per-node=1")
    yield vendor_of(scenario.system).slurm.format(chips_per_node)
    yield from ("--exclusive", "--mem=0", f"--time={clock(job.time) if job.time is not None else TIME}")
    yield f"--output={job.output.rstrip('/') + '/' if job.output else ''}%x-%j.log"
    yield from (f"--{word}={value}" for word, value in _site(job) if value)


def _open(job: JobRequest) -> Iterator[str]:
    """What a site may ask for and nobody said; a folder for logs, which Slurm does not make."""
    if job.output:
        yield f"# {job.output.rstrip('/')} has to exist when the job starts: Slurm makes no folder for its logs"
    lacks = [f"##SBATCH --{word}={word.upper()}" for word, value in _site(job) if not value]
    if lacks:
        yield "# yours, where your site asks for them: remove one # and fill in"
        yield from lacks


def _site(job: JobRequest) -> tuple[tuple[str, str | None], ...]:
    return (("partition", job.partition), ("account", job.account))


def slurm_job(scenario: Scenario, _: Files, job: JobRequest) -> str:
    """The batch script of a job that is asked for by hand."""
    return slurm(scenario, "Slurm", job)


def slurm_run(scenario: Scenario, words: tuple[str, ...], warning_s: int = 120) -> str:
    """A batch script of `ridgeline run`: a task for each chip, the words behind `ridgeline run` as given.

    Tasks are told to stop some seconds before the time limit and write a checkpoint; a job whose node fails is queued
    again and resumes, for `run` looks at SLURM_RESTART_COUNT. Options of `sbatch` go before those written here.
    """
    nodes, chips_per_node = nodes_of(scenario.system)
    return (
        f"#!/bin/bash\n{comment(header(scenario, 'ridgeline run'))}"
        f"#SBATCH --job-name={job_name(scenario)}\n#SBATCH --nodes={nodes}\n"
        f"#SBATCH --ntasks-per-node={chips_per_node}\n"
        f"#SBATCH {vendor_of(scenario.system).slurm.format(chips_per_node)}\n"
        f"#SBATCH --requeue\n#SBATCH --open-mode=append\n#SBATCH --signal=TERM@{warning_s}\nset -euo pipefail\n\n"
        f"srun --kill-on-bad-exit=1 ridgeline run {shlex.join(words)}\n"
    )


def _tame(text: str) -> str:
    """Text that stays inside its comment line."""
    return re.sub(r"[^ -~]+", " ", text)[:128]


FILES = frozenset(file for file, _ in LAUNCHERS.values()) - {SLURM, ""}  # which say nothing of the plan


def launcher_file(launcher: str, scenario: Scenario, files: Files, job: JobRequest) -> str:
    """The text of the file that a launcher reads."""
    module, _, function = LAUNCHERS[launcher][1].partition(".")
    write: Callable[[Scenario, Files, JobRequest], str]
    write = getattr(import_module(f"ridgeline.targets.launchers.{module}"), function)
    return write(scenario, files, job)


def with_launcher(made: Export, scenario: Scenario, launcher: str, job: JobRequest) -> Export:
    """The export with launch.sh and the file of the launcher, instead of Slurm's plain one."""
    if launcher not in LAUNCHERS:
        raise InputError(not_among("--launcher", launcher, LAUNCHERS))
    if not isinstance(scenario.workload, Train) or ON_NODE not in made.files:
        given_text = f"{launcher} for {made.target}"
        raise InputError(Problem(path="--launcher", given=given_text, expected="a training run with a launch.sh"))
    plain_files = {name: text for name, text in made.files.items() if name != SLURM}
    if launcher == "torchrun":
        return replace(made, files=plain_files)
    needed_names = {name: text for name, text in plain_files.items() if not name.endswith(".md")}
    return replace(
        made, files={**plain_files, LAUNCHERS[launcher][0]: launcher_file(launcher, scenario, needed_names, job)}
    )
