"""Turn a serving scenario and an engine's arguments into the script that starts one replica, and back into words.

`launch.sh` starts one replica; where there are several, REPLICA says which, and each takes its own chips and port. A
replica that spans nodes is started on each of them, with NODE_RANK and MASTER_ADDR from the environment.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.core.documents import JsonMapping
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.imports.shell_eval import Script, read_script
from ridgeline.targets.launchers.launch import comment, header
from ridgeline.targets.target import Files

CONTAINERS = ("docker", "podman", "nerdctl")
WRAPPERS = 12  # words before a program's name: env, exec, numactl and the like; a container has many more
SERVER = ("HOST=${HOST:-127.0.0.1}", "PORT=${PORT:-8000}")
VISIBLE = {"NVIDIA": "CUDA_VISIBLE_DEVICES", "AMD": "HIP_VISIBLE_DEVICES", "Huawei": "ASCEND_RT_VISIBLE_DEVICES"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
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


def words_of(option: str, value: Any) -> list[str]:
    """An option as quoted shell words; a switch that is off as its `--no-` form.

    >>> words_of("--x", True), words_of("--x", False), words_of("--y", ("a", "b c"))
    (['--x'], ['--no-x'], ['--y', 'a', "'b c'"])
    """
    if isinstance(value, bool):
        return [option if value else f"--no-{option[2:]}"]
    values = value if isinstance(value, tuple) else (value,)
    return [option, *(shlex.quote(f"{part:g}" if isinstance(part, float) else str(part)) for part in values)]


def array(name: str, values: JsonMapping) -> str:
    """A shell array of options, one on each line."""
    lines = [f"    {' '.join(words_of(option, value))}\n" for option, value in values.items()]
    return f"{name}=(\n{''.join(lines)})\n"


def model_line(weights: str) -> str:
    """MODEL from the environment, else the published weights; without any it has to be set."""
    if weights:
        return f"MODEL=${{MODEL:-{weights}}}\n"
    return 'MODEL=${MODEL:?"set MODEL to the folder of the weights"}\n'


def launch_script(scenario: Scenario, how: Launch, title: str) -> str:
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
    """Every shell script among the files, followed without being run; a bare command line counts as one."""
    scripts = {}
    for name, text in files.items():
        if name.endswith((".sh", ".sbatch", ".txt", ".bash")) or "." not in name:
            scripts[name] = read_script(text)
    return scripts


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
