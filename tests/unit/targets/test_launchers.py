"""Launch files of schedulers: each starts launch.sh on every node and says how many there are and which it is."""

from __future__ import annotations

import ast
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.api import import_run
from ridgeline.targets.launchers.launch import job_request
from ridgeline.targets.registry import LAUNCHERS

ASKED = {"time": "4h", "partition": "gpu", "account": "lab", "image": "repo/image:1", "output": "results"}


def made(system: str = "64xh100-sxm", model: str = "llama3-8b", **more: Any) -> Scenario:
    table = {
        "model": model,
        "system": system,
        "workload": {"seq": 8192, "global_batch": 256},
        "plan": {"shard": "zero3"},
    }
    return ridgeline.scenario({**table, **more})


def files(launcher: str, job: dict[str, str] | None = None, to: str = "torchtitan", **more: Any) -> dict[str, str]:
    return dict(ridgeline.export(made(**more), to=to, launcher=launcher, job=job or {}).files)


def items(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    table = yaml.safe_load(text)
    assert (table["apiVersion"], table["kind"]) == ("v1", "List")
    config, job = table["items"]
    return config, job


def test_every_launcher_keeps_the_run_and_reads_back() -> None:
    plain = ridgeline.export(made(), to="torchtitan").files
    for launcher in LAUNCHERS:
        found = files(launcher, ASKED)
        extra = {LAUNCHERS[launcher][0]} - {""}
        assert set(found) == (set(plain) - {"launch.sbatch"}) | extra
        assert {name: found[name] for name in ("job.toml", "launch.sh")} == {
            name: plain[name] for name in ("job.toml", "launch.sh")
        }


def test_a_folder_with_a_launchers_file_is_imported_as_before(tmp_path: Path) -> None:
    for launcher in ("jobset", "ray", "skypilot"):
        folder = tmp_path / launcher
        folder.mkdir()
        for name, text in files(launcher, ASKED, to="torchtitan-preset").items():
            (folder / name).write_text(text, encoding="utf-8")
        assert import_run(folder).settings["model"] == "llama3-8b"


def test_kubernetes_pods_are_nodes_and_carry_the_files() -> None:
    config, job = items(files("jobset", ASKED)["jobset.yaml"])
    assert set(config["data"]) == {"job.toml", "launch.sh"}
    assert job["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "gpu"}
    (inner,) = job["spec"]["replicatedJobs"]
    spec = inner["template"]["spec"]
    assert (spec["parallelism"], spec["completions"], spec["activeDeadlineSeconds"]) == (8, 8, 14400)
    (container,) = spec["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert "MASTER_ADDR=llama3-8b-node-0-0.llama3-8b " in container["command"][2]
    assert spec["template"]["spec"]["volumes"][0]["configMap"]["name"] == config["metadata"]["name"]
    assert spec["template"]["spec"]["volumes"][2]["persistentVolumeClaim"] == {"claimName": "results"}

    _, volcano = items(files("volcano", ASKED)["volcano.yaml"])
    assert (volcano["spec"]["minAvailable"], volcano["spec"]["queue"]) == (8, "gpu")
    _, train = items(files("trainjob")["trainjob.yaml"])
    assert train["spec"]["trainer"]["numNodes"] == 8
    assert "image=..." in files("trainjob")["trainjob.yaml"].splitlines()[3]


def test_a_tpu_slice_is_asked_for_by_its_shape() -> None:
    text = files("jobset", to="maxtext", system="tpu-v5p:4x4x4")["jobset.yaml"]
    pod = items(text)[1]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-accelerator"] == "tpu-v5p-slice"
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4x4"
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": "4"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_what_pods_and_tasks_run_is_shell_and_writes_the_files(tmp_path: Path) -> None:
    """The task's own setup run for real, in a home of its own: the files arrive word for word."""
    found = files("skypilot", ASKED)
    task = yaml.safe_load(found["skypilot.yaml"])
    assert task["resources"] == {"accelerators": "H100:8", "image_id": "docker:repo/image:1"}
    assert (task["num_nodes"], "timeout 14400 bash ~/plan/launch.sh" in task["run"]) == (8, True)
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    subprocess.run(["bash", "-c", task["setup"]], env=env, check=True)
    for name in ("job.toml", "launch.sh"):
        assert (tmp_path / "plan" / name).read_text(encoding="utf-8") == found[name]
    script = items(files("jobset")["jobset.yaml"])[1]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    for text in (task["run"], script["spec"]["containers"][0]["command"][2], files("slurm", ASKED)["launch.sbatch"]):
        subprocess.run(["bash", "-n", "-c", text], check=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_slurm_finds_the_script_from_any_folder(tmp_path: Path) -> None:
    """A batch script is run from Slurm's copy of it; stand-ins for scontrol and srun say where the original is."""
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / "launch.sh").write_text('echo "$NODE_RANK of $NNODES at $MASTER_ADDR: $*"\n')
    asked = 'case $2 in job) echo "   Command=$PLAN/launch.sbatch a";; *) printf "n1\\nn2\\n";; esac\n'
    (tmp_path / "scontrol").write_text(f"#!/bin/bash\n{asked}")
    words = 'while [[ $1 == --* ]]; do shift; done\necho "$CONTAINER"\n'
    (tmp_path / "srun").write_text(f'#!/bin/bash\n{words}SLURM_NODEID=1 exec "$@"\n')
    for name in ("scontrol", "srun"):
        (tmp_path / name).chmod(0o755)
    text = files("slurm", {"time": "90 min", "account": "lab", "output": "logs", "image": "a/b:1"})["launch.sbatch"]
    asked = ("time=01:30:00", "account=lab", "output=logs/%x-%j.log", "mem=0", "exclusive")
    assert all(f"\n#SBATCH --{one}\n" in text for one in asked)
    assert "##SBATCH --partition=PARTITION" in text
    text = text.replace("\nHERE=$(scontrol", "\nexport CONTAINER\nHERE=$(scontrol")
    (tmp_path / "copy").write_text(text)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PLAN": str(tmp_path / "plan"), "SLURM_JOB_ID": "7"}
    env |= {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NNODES": "2"}
    done = subprocess.run(["bash", str(tmp_path / "copy"), "x y"], env=env, cwd="/", capture_output=True, text=True)
    assert done.stdout == "a/b:1\n1 of 2 at n1: x y\n", done.stderr


def test_ray_is_a_script_and_azure_a_command_job() -> None:
    tree = ast.parse(files("ray", ASKED)["launch_ray.py"])
    assert [node.name for node in tree.body if isinstance(node, ast.FunctionDef)] == ["on_node"]
    job = yaml.safe_load(files("azureml", ASKED)["azureml.yaml"])
    assert (job["type"], job["resources"]["instance_count"], job["compute"]) == ("command", 8, "azureml:gpu")
    assert (job["limits"], job["distribution"]["process_count_per_instance"]) == ({"timeout": 14400}, 1)


@pytest.mark.parametrize(
    ("launcher", "job", "told"),
    [
        ("kubernetes", {}, "jobset"),
        ("slurm", {"tiem": "4h"}, "time"),
        ("slurm", {"time": "4 parsecs"}, "4h"),
        ("slurm", {"partition": "gpu\n#SBATCH --wrap=owned"}, "letters"),
        ("jobset", {"image": "$(touch owned)"}, "letters"),
    ],
)
def test_bad_requests_are_refused(launcher: str, job: dict[str, str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        files(launcher, job)


def test_chips_without_a_name_and_serving_are_refused() -> None:
    with pytest.raises(InputError, match="SkyPilot has no name for"):
        files("skypilot", to="maxtext", system="tpu-v5p:4x4x4")
    load = {"kind": "serve", "arrivals": {"kind": "poisson", "rate": 1}, "isl": 64, "osl": 8}
    with pytest.raises(InputError, match="a training run"):
        files("jobset", to="vllm", system="8xh100-sxm", workload=load, plan={"engine": "vllm"})


def test_names_stay_names() -> None:
    found = items(files("jobset", name="Run #1: $(touch owned)\n---")["jobset.yaml"])[1]
    assert found["metadata"]["name"] == "run-1-touch-owned"
    assert job_request({}).time is None
