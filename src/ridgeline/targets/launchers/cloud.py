"""Turn a run's files into a task of SkyPilot, a job of Azure ML, or a script of Ray Train."""

from __future__ import annotations

import re
import shlex
from math import ceil

from ridgeline.core.errors import InputError, Problem
from ridgeline.hardware.device_names import skypilot_names
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.launchers.launch import (
    IMAGE,
    ON_NODE,
    SLURM,
    JobRequest,
    comment,
    header,
    job_name,
    nodes_of,
)
from ridgeline.targets.tables import template
from ridgeline.targets.target import Files
from ridgeline.targets.vendors import vendor_of
from ridgeline.targets.yaml_text import manifest_text

END = "RIDGELINE_END"
SCHEMA = "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json"


def skypilot(scenario: Scenario, files: Files, job: JobRequest) -> str:
    """A task that writes the files on every node and runs launch.sh there; `sky launch` works from any folder."""
    nodes, chips_per_node = nodes_of(scenario.system)
    names = skypilot_names()
    chip = names.get(scenario.system.chip.id)
    if chip is None:
        known_names = ", ".join(sorted(names))
        given_text = f"{scenario.system.chip.id}, which SkyPilot has no name for"
        raise InputError(Problem(path="--launcher", given=given_text, expected=f"a system of {known_names}"))
    resources: dict[str, object] = {"accelerators": f"{chip}:{chips_per_node}"}
    if job.image is not None:
        resources["image_id"] = f"docker:{job.image}"
    limit = f"timeout {ceil(job.time)} " if job.time is not None else ""
    run = (
        "set -e\nexport NNODES=$SKYPILOT_NUM_NODES NODE_RANK=$SKYPILOT_NODE_RANK MASTER_PORT=29500\n"
        'export MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | sed -n 1p)\n'
        f"{limit}bash ~/plan/{ON_NODE}\n"
    )
    task: dict[str, object] = {"name": job_name(scenario), "num_nodes": nodes, "resources": resources}
    if job.output is not None:
        task["file_mounts"] = {"/output": {"source": job.output, "mode": "MOUNT"}}
    task |= {"setup": _written(files), "run": run}
    return comment(header(scenario, "SkyPilot")) + manifest_text(task)


def _written(files: Files) -> str:
    """Shell text that writes the files into ~/plan, word for word."""
    lines = ["set -e", "mkdir -p ~/plan"]
    for name, text in files.items():
        if name != SLURM:
            end = END
            while re.search(rf"^{end}$", text, re.MULTILINE):
                end += "_"
            lines += [f"cat > ~/plan/{shlex.quote(name)} <<'{end}'", text.rstrip("\n"), end]
    return "\n".join(lines) + "\n"


def azureml(scenario: Scenario, files: Files, job: JobRequest) -> str:
    """A command job: `az ml job create --file azureml.yaml`. The folder of the file is its code."""
    nodes, _ = nodes_of(scenario.system)
    assert ON_NODE in files
    job_table: dict[str, object] = {
        "$schema": SCHEMA,
        "type": "command",
        "display_name": job_name(scenario),
        "code": ".",
        "command": f"bash {ON_NODE}",
        "environment": {"image": job.image or IMAGE},
        "compute": f"azureml:{job.partition or 'your-cluster'}",
        "resources": {"instance_count": nodes, "shm_size": "64g"},
        "distribution": {"type": "pytorch", "process_count_per_instance": 1},
        "environment_variables": {"NNODES": str(nodes)},
    }
    if job.time is not None:
        job_table["limits"] = {"timeout": ceil(job.time)}
    lacks = [word for word, value in (("image", job.image), ("partition", job.partition)) if value is None]
    note = [f"Yours to say: {', '.join(f'--job {word}=...' for word in lacks)}"] if lacks else []
    return comment((*header(scenario, "Azure ML"), *note)) + manifest_text(job_table)


RAY = template("ray_train.txt")


def ray_train(scenario: Scenario, files: Files, job: JobRequest) -> str:
    """A script for a Ray cluster: a worker for each node, spread; the folder travels with it."""
    nodes, chips_per_node = nodes_of(scenario.system)
    assert ON_NODE in files
    text = RAY.format(
        nodes=nodes,
        each=chips_per_node,
        resource=vendor_of(scenario.system).ray,
        strategy="STRICT_SPREAD" if nodes > 1 else "PACK",
        name=job_name(scenario),
        storage=f", storage_path={job.output!r}" if job.output else "",
        time=job.time,
    )
    return comment(header(scenario, "Ray Train")) + text
