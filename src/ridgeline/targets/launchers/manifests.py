"""Turn a run's files into what a scheduler reads: manifests of Kubernetes, tasks of clouds, a script of Ray Train.

A JobSet, a TrainJob of Kubeflow and a Job of Volcano carry the files in a ConfigMap, so that `kubectl apply -f` is all.
Each pod is a node: it copies the files to a place it can write to and runs launch.sh, which is told how many nodes
there are, which this is, who leads.
"""

from __future__ import annotations

import re
import shlex
from math import ceil

from ridgeline.core.documents import JsonMapping, JsonObject
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

PORT = "29500"
NODE = "node"
NETWORK = "Yours: your cluster's names of fast network devices (rdma/..., hostNetwork); pods have none without them"
# GKE's names of TPU slices
SLICES = {
    "tpu-v4": "tpu-v4-podslice",
    "tpu-v5e": "tpu-v5-lite-podslice",
    "tpu-v5p": "tpu-v5p-slice",
    "tpu-v6e": "tpu-v6e-slice",
    "tpu-v7x": "tpu7x",
}


def jobset(scenario: Scenario, files: Files, job: JobRequest) -> str:
    """A JobSet of one replicated job with a pod for each node; Kueue admits it where a queue is asked for."""
    name, (nodes, _) = job_name(scenario), nodes_of(scenario.system)
    pod = _pod(scenario, job, name, _script(nodes, "$JOB_COMPLETION_INDEX", f"{name}-{NODE}-0-0.{name}"))
    inner: JsonObject = {"parallelism": nodes, "completions": nodes, "completionMode": "Indexed", "backoffLimit": 0}
    inner |= {**_deadline(job), "template": {"spec": pod}}
    spec = {
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": [{"name": NODE, "replicas": 1, "template": {"spec": inner}}],
    }
    return _manifest(scenario, files, job, "jobset.x-k8s.io/v1alpha2", "JobSet", spec)


def trainjob(scenario: Scenario, files: Files, job: JobRequest) -> str:
    """A TrainJob of Kubeflow on the runtime torch-distributed; PET_* variables say who this pod is."""
    name, (nodes, chips_per_node) = job_name(scenario), nodes_of(scenario.system)
    pod = _pod(scenario, job, name, _script(nodes, "$PET_NODE_RANK", "$PET_MASTER_ADDR"))
    (container,) = pod["containers"]
    patch = {
        "containers": [{"name": NODE, "volumeMounts": container["volumeMounts"]}],
        "volumes": pod["volumes"],
        **({"nodeSelector": pod["nodeSelector"]} if "nodeSelector" in pod else {}),
    }
    inner = {"name": NODE, "template": {"spec": {"template": {"spec": patch}}}}
    runtime = {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": "torch-distributed"}
    patches = {"template": {"spec": {"replicatedJobs": [inner]}}}
    spec = {
        "runtimeRef": runtime,
        "trainer": {
            "image": container["image"],
            "command": container["command"],
            "numNodes": nodes,
            "numProcPerNode": chips_per_node,
            "resourcesPerNode": container["resources"],
        },
        "runtimePatches": [{"manager": "ridgeline.dev/export", "trainingRuntimeSpec": patches}],
        **_deadline(job),
    }
    return _manifest(scenario, files, job, "trainer.kubeflow.org/v1alpha1", "TrainJob", spec)


def volcano(scenario: Scenario, files: Files, job: JobRequest) -> str:
    """A Job of Volcano, all of whose pods start together or none."""
    name, (nodes, _) = job_name(scenario), nodes_of(scenario.system)
    pod = _pod(scenario, job, name, _script(nodes, "$VC_TASK_INDEX", f"{name}-{NODE}-0.{name}"))
    pod |= _deadline(job)
    spec = {
        "minAvailable": nodes,
        "schedulerName": "volcano",
        "queue": job.partition or "default",
        "maxRetry": 1,
        "plugins": {"env": [], "svc": []},
        "policies": [{"event": "PodFailed", "action": "AbortJob"}],
        "tasks": [{"name": NODE, "replicas": nodes, "template": {"spec": pod}}],
    }
    return _manifest(scenario, files, job, "batch.volcano.sh/v1alpha1", "Job", spec)


def _deadline(job: JobRequest) -> JsonObject:
    return {"activeDeadlineSeconds": int(job.time)} if job.time is not None else {}


def _script(nodes: int, rank: str, leader: str) -> str:
    return (
        "set -euo pipefail\n"
        "mkdir -p /tmp/plan && cp -L /plan/* /tmp/plan/\n"
        f"export NNODES={nodes} NODE_RANK={rank} MASTER_ADDR={leader} MASTER_PORT={PORT}\n"
        f"exec bash /tmp/plan/{ON_NODE}\n"
    )


def _pod(scenario: Scenario, job: JobRequest, name: str, script: str) -> JsonObject:
    """The pod that is one node: its chips, the files, shared memory for the processes on it."""
    _, chips_per_node = nodes_of(scenario.system)
    mounts = [{"name": "plan", "mountPath": "/plan"}, {"name": "shm", "mountPath": "/dev/shm"}]
    volumes: list[JsonObject] = [
        {"name": "plan", "configMap": {"name": f"{name}-plan"}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    if job.output is not None:
        mounts.append({"name": "output", "mountPath": "/output"})
        volumes.append({"name": "output", "persistentVolumeClaim": {"claimName": job.output}})
    node_selector = selector(scenario)
    return {
        "restartPolicy": "Never",
        **({"nodeSelector": node_selector} if node_selector else {}),
        "containers": [
            {
                "name": NODE,
                "image": job.image or IMAGE,
                "command": ["bash", "-c", script],
                "resources": {"limits": {vendor_of(scenario.system).kubernetes: str(chips_per_node)}},
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }


def selector(scenario: Scenario) -> dict[str, str]:
    """The labels of GKE's nodes that hold a TPU slice of this shape; nothing for other chips.

    >>> import ridgeline
    >>> made = ridgeline.scenario({"model": "llama3-8b", "system": "tpu-v5p:2x2x2",
    ...     "workload": {"seq": 4096, "global_batch": 8}, "plan": {}})
    >>> selector(made)["cloud.google.com/gke-tpu-topology"]
    '2x2x2'
    """
    system = scenario.system
    shape = re.search(r":(\d+(?:x\d+){1,2})$", system.name)
    if system.chip.id not in SLICES or shape is None:
        return {}
    return {
        "cloud.google.com/gke-tpu-accelerator": SLICES[system.chip.id],
        "cloud.google.com/gke-tpu-topology": shape.group(1),
    }


def _manifest(scenario: Scenario, files: Files, job: JobRequest, api: str, kind: str, spec: JsonMapping) -> str:
    """The ConfigMap of the files and the job as one list: `kubectl apply -f`. Volcano's queue stands in its spec."""
    name = job_name(scenario)
    mounted_files = {path: text for path, text in files.items() if path != SLURM}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-plan"}, "data": mounted_files}
    kueue = {"labels": {"kueue.x-k8s.io/queue-name": job.partition}} if job.partition and kind != "Job" else {}
    manifest = {"apiVersion": api, "kind": kind, "metadata": {"name": name, **kueue}, "spec": spec}
    notes = list(header(scenario, kind))
    if job.image is None:
        notes.append(f"The image {IMAGE} stands for one that has the software: say it with --job image=...")
    if nodes_of(scenario.system)[0] > 1 and not selector(scenario):
        notes.append(NETWORK)
    return comment(notes) + manifest_text({"apiVersion": "v1", "kind": "List", "items": [config, manifest]})


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
    lines = ["set -e", "mkdir -p ~/plan"]
    for name, text in files.items():
        if name != SLURM:
            end = END
            while re.search(rf"^{end}$", text, re.MULTILINE):
                end += "_"
            lines += [f"cat > ~/plan/{shlex.quote(name)} <<'{end}'", text.rstrip("\n"), end]
    task |= {"setup": ("\n".join(lines) + "\n"), "run": run}
    return comment(header(scenario, "SkyPilot")) + manifest_text(task)


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
