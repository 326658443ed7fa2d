"""Launch scripts: nodes and chips as the system has them, words that the shell takes as words."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.launchers.launch import NodeCommand, header, nodes_of, on_node, slurm, system_in
from ridgeline.targets.registry import IDS, POST_TRAIN, SERVE, TARGETS, TRAIN
from ridgeline.targets.vendors import refuse_other_chips, vendors


def made(system: str = "64xh100-sxm") -> Scenario:
    work = {"seq": 4096, "global_batch": 768}
    return ridgeline.scenario({"model": "llama3-8b", "system": system, "workload": work, "plan": {}})


@pytest.mark.parametrize(
    ("system", "nodes", "each"),
    [
        ("1xh100-sxm", 1, 1),
        ("4xh100-sxm", 1, 4),
        ("64xh100-sxm", 8, 8),
        ("256xgb200-nvl72", 64, 4),
        ("12xh100-sxm", 2, 6),
    ],
)
def test_nodes_and_chips(system: str, nodes: int, each: int) -> None:
    assert nodes_of(ridgeline.system(system)) == (nodes, each)
    text = slurm(made(system), "x")
    assert f"--nodes={nodes}\n" in text
    assert f"--gpus-per-node={each}\n" in text


@pytest.mark.parametrize(
    ("system", "asked"),
    [
        ("16xascend-910b2", "--gres=npu:8"),
        ("16xgaudi3", "--gres=hpu:8"),
        ("16xmi300x", "--gpus-per-node=8"),
    ],
)
def test_slurm_is_asked_in_the_words_of_the_vendor(system: str, asked: str) -> None:
    assert f"#SBATCH {asked}" in slurm(made(system), "x")


def test_a_vendor_without_a_table_is_asked_for_by_gpus() -> None:
    scenario = made("16xascend-910b2")
    chip = replace(scenario.system.chip, vendor="Nobody")
    unknown = replace(scenario, system=replace(scenario.system, chip=chip))
    assert "#SBATCH --gpus-per-node=8" in slurm(unknown, "x")
    lost = {part.path: part.why for part in ridgeline.export(unknown, to="verl").lost}
    assert lost["system.chips"] == "it runs on chips of NVIDIA, AMD and Huawei, not of Nobody"


def test_every_vendor_names_targets_that_exist() -> None:
    known = {chip.vendor for chip in ridgeline.CHIPS.values()}
    assert set(vendors()) <= known
    for vendor in vendors().values():
        assert set(vendor.targets) <= set(IDS)
        assert vendor.slurm.format(8) != vendor.slurm or vendor.device == "cpu"  # a host's ranks are its processes


def test_a_command_without_rendezvous_asks_for_no_leader() -> None:
    """On a TPU slice every host runs the same line; elsewhere JAX is told who leads, from the script's variables."""
    alone = ridgeline.export(made("tpu-v5p:4x4x4"), to="maxtext").files
    assert set(alone) == {"maxtext.yml", "launch.sh", "LEDGER.md"}
    assert "NNODES" not in alone["launch.sh"]
    lines = ridgeline.export(made(), to="maxtext").files["launch.sh"].splitlines()
    told = next(at for at, line in enumerate(lines) if "JAX_COORDINATOR_IP" in line)
    assert any(line.startswith("MASTER_ADDR=") for line in lines[:told])
    assert any("maxtext.trainers" in line for line in lines[told:])


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_hostile_words_stay_words(tmp_path: Path) -> None:
    words = ("train.py", "--name", "a b; touch owned", "$(touch owned)", "'`touch owned`")
    command = NodeCommand(
        words=words, environment={"A": "x; touch owned"}, per_chip=False, tail='"${ARGS[@]}"', before="ARGS=(1 2)"
    )
    text = on_node(made(), command, "x").replace("    train.py", "    printf '%s\\n' train.py")
    text = text.replace("\ntrain.py", "\nprintf '%s\\n' train.py")
    script = tmp_path / "launch.sh"
    script.write_text(text)
    environment = {"PATH": "/usr/bin:/bin", "MASTER_ADDR": "one"}
    done = subprocess.run(
        ["bash", str(script), "last"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [*words, "1", "2", "last"]
    assert not (tmp_path / "owned").exists()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize("system", ["64xh100-sxm", "tpu-v5p:4x4x4"])
@pytest.mark.parametrize("target", TRAIN)
def test_written_scripts_are_shell(tmp_path: Path, target: str, system: str) -> None:
    for name, text in TARGETS[target].write(made(system)).files.items():
        if name.endswith((".sh", ".sbatch")):
            (tmp_path / name).write_text(text)
            subprocess.run(["bash", "-n", str(tmp_path / name)], check=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_torchrun_gets_what_the_reader_reads(tmp_path: Path) -> None:
    """The reader that never runs a script agrees with a shell that does."""
    from ridgeline.targets.dialects.megatron.collect import from_script, parse_options

    text = ridgeline.export(made(), to="megatron").files["launch.sh"]
    fake = tmp_path / "torchrun"
    fake.write_text("#!/bin/bash\nprintf '%s\\0' \"$@\"\n")
    fake.chmod(0o755)
    (tmp_path / "launch.sh").write_text(text)
    done = subprocess.run(
        ["bash", "launch.sh"],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "MASTER_ADDR": "one"},
        capture_output=True,
        check=True,
    )
    words = done.stdout.decode().split("\0")[:-1]
    start = next(index for index, word in enumerate(words) if word.endswith(".py"))
    found = from_script("launch.sh", text)
    assert found is not None
    assert found.options == parse_options(words[start + 1 :])
    assert found.world == 64


def test_the_system_is_read_back_from_a_written_file_only() -> None:
    scenario = made()
    text = "".join(f"# {line}\n" for line in header(scenario, "x"))
    assert system_in({"a": text}) == "64xh100-sxm"
    assert system_in({"a": "# system: 64xh100-sxm"}) is None
    evil = replace(scenario, system=replace(scenario.system, name="x\nrm -rf /"))
    assert "\nrm" not in on_node(evil, NodeCommand(words=("a",)), "x") + slurm(evil, "x")


def stub(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_several_nodes_start_from_any_folder(tmp_path: Path) -> None:
    """Slurm runs a copy of the batch script from where it was submitted; the node's script is found all the same."""
    run, tools, other = tmp_path / "run", tmp_path / "tools", tmp_path / "other"
    for folder in (run, tools, other):
        folder.mkdir()
    for name, text in ridgeline.export(made(), to="megatron").files.items():
        (run / name).write_text(text)
    stub(
        tools,
        "scontrol",
        f'[ "$2" = job ] && echo "   Command={run}/launch.sbatch --lr 1" || printf "one\\ntwo\\n"',
    )
    stub(tools, "srun", 'while [[ "$1" == --* ]]; do echo "srun $1"; shift; done; SLURM_NODEID=1 exec "$@"')
    stub(tools, "torchrun", 'echo "in $PWD"; printf "%s\\n" "$@"')
    shutil.copy(run / "launch.sbatch", other / "slurm_script")
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "CONTAINER": "an image.sqsh", "SLURM_SUBMIT_DIR": str(other)}
    environment |= {"SLURM_JOB_ID": "7", "SLURM_NNODES": "8", "SLURM_JOB_NODELIST": "x"}
    words = ["bash", "slurm_script", "--lr", "1"]
    done = subprocess.run(words, cwd=other, env=environment, capture_output=True, text=True, check=True)
    said = done.stdout.splitlines()
    assert f"in {run}" in said
    assert "srun --container-image=an image.sqsh" in said
    assert {"--node-rank=1", "--master-addr=one", "--nnodes=8"} <= set(said)
    assert said[-2:] == ["--lr", "1"]
    alone = subprocess.run(["bash", str(run / "launch.sh")], env={"PATH": f"{tools}:/usr/bin"}, capture_output=True)
    assert alone.returncode != 0
    assert b"8 nodes: sbatch launch.sbatch" in alone.stderr
    batch = (run / "launch.sbatch").read_text()
    assert all(f"#SBATCH --{word}" in batch for word in ("time=", "output=", "partition=", "account="))


def test_a_slice_of_tpus_is_reached_by_gcloud_or_xpk() -> None:
    text = ridgeline.export(made("tpu-v5p:4x4x4"), to="maxtext").files["launch.sh"]
    assert "gcloud compute tpus tpu-vm ssh" in text
    assert "--tpu-type=v5p-128" in text
    assert "export LIBTPU_INIT_ARGS=" in text
    assert 'base_output_directory="${OUTPUT:-$PWD/output}"' in text


CHIPS = {
    "NVIDIA": "8xh100-sxm", "AMD": "8xmi300x", "Huawei": "8xascend-910b2", "Google": "tpu-v5p:2x2x2",
    "Intel": "8xgaudi2", "AWS": "16xtrn2", "Microsoft": "8xmaia100", "host": "2xcpu",
}  # fmt: skip


def test_every_target_refuses_the_chips_of_every_vendor_it_does_not_run_on() -> None:
    assert set(CHIPS) == set(vendors())
    for vendor, system in CHIPS.items():
        scenario = made(system)
        for target in IDS:
            if target in vendors()[vendor].targets:
                refuse_other_chips(scenario.system, target)
                continue
            with pytest.raises(InputError, match=rf"not of {vendor}") as refused:
                refuse_other_chips(scenario.system, target)
            advice = str(refused.value).rpartition("use --to ")[2]
            kind = next(kind for kind in (SERVE, POST_TRAIN, TRAIN) if target in kind)
            assert advice in kind or "of the kind runs on them" in advice
