"""`ridgeline export` and `ridgeline import`: files, what is lost, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ridgeline.cli.main import command_line
from ridgeline.core.errors import InputError

EXAMPLE = "examples/llama3-70b-64xh100.toml"
ROOT = Path(__file__).parents[3]


def run(*words: str) -> str:
    done = CliRunner().invoke(command_line(), list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_there_and_back_again_and_predicted(tmp_path: Path) -> None:
    folder, back = tmp_path / "run", tmp_path / "back.toml"
    assert "launch.sh" in run("export", EXAMPLE, "--to", "megatron", "-o", str(folder))
    assert sorted(path.name for path in folder.iterdir()) == ["LEDGER.md", "args.yaml", "launch.sbatch", "launch.sh"]
    run("import", str(folder), "-o", str(back))
    before = json.loads(run("predict", EXAMPLE, "--json"))
    after = json.loads(run("predict", str(back), "--json"))
    assert after["step_time_s"] == before["step_time_s"]
    assert after["peak_memory_bytes"] == before["peak_memory_bytes"]


def test_files_are_not_overwritten_unless_forced(tmp_path: Path) -> None:
    words = ["export", EXAMPLE, "--to", "megatron", "-o", str(tmp_path)]
    run(*words)
    (tmp_path / "launch.sh").write_text("mine")
    with pytest.raises(InputError, match="--force"):
        run(*words)
    assert (tmp_path / "launch.sh").read_text() == "mine"
    run(*words, "--force")
    assert "torchrun" in (tmp_path / "launch.sh").read_text()


def test_json_names_every_decision() -> None:
    words = ["export", EXAMPLE, "--to", "megatron", "--set", "plan.schedule=zbv", "--json"]
    sheet = json.loads(run(*words, "--allow-misfit"))
    assert set(sheet) == {"schema_version", "target", "version", "files", "expressed", "implied", "lost", "check"}
    assert {part["path"] for part in sheet["lost"]} >= {"plan.schedule.name", "plan.placement"}


def test_an_unknown_target_is_told_the_known_ones() -> None:
    with pytest.raises(InputError, match="megatron-bridge"):
        run("export", EXAMPLE, "--to", "megatorn")


def test_an_import_without_a_machine_asks_for_one(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 "
        "--vocab-size 100 --micro-batch-size 1 --global-batch-size 8 --bf16 --lr 0.1 --not-an-option 3"
    )
    with pytest.raises(InputError, match="--on"):
        run("import", str(script))
    words = ["import", str(script), "--on", "8xh100-sxm", "--json"]
    sheet = json.loads(run(*words, "--accept-unread"))
    assert sheet["scenario"]["system"] == "8xh100-sxm"
    why = {part["option"]: part["why"] for part in sheet["unread"]}
    assert "decides nothing" in why["lr"]
    assert "not among" in why["not-an-option"]
    doubtful = CliRunner().invoke(command_line(), [*words, "-o", str(tmp_path / "run.toml")], catch_exceptions=False)
    assert doubtful.exit_code == 1
    assert json.loads(doubtful.stdout)["scenario"]["unread"] == {"other": ["not-an-option 3"]}
    assert not (tmp_path / "run.toml").exists()
    run(*words, "-o", str(tmp_path / "run.toml"), "--accept-unread")
    assert "not-an-option" in json.loads(run("predict", str(tmp_path / "run.toml"), "--json"))["interval"]["basis"]


def test_files_of_nobody_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("hello: world\n")
    with pytest.raises(InputError, match="no target recognises"):
        run("import", str(tmp_path / "a.yaml"))
    with pytest.raises(InputError, match="no such file"):
        run("import", str(tmp_path / "absent.sh"))


ASCEND = """
model = "deepseek-v3"
system = "1024xascend-910b2"
[workload]
kind = "train"
seq = 4096
global_batch = 4096
[plan]
ep = 32
shard = "zero3"
recompute = "full"
engine = "mindspeed"
"""


def test_files_that_no_longer_fit_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    """MindSpeed shards optimizer states only: what fits under zero3 does not as it would be written."""
    plan, folder = tmp_path / "ascend.toml", tmp_path / "run"
    plan.write_text(ASCEND)
    words = ["export", str(plan), "--to", "mindspeed", "-o", str(folder)]
    done = CliRunner().invoke(command_line(), words, catch_exceptions=False)
    assert done.exit_code == 1
    assert not folder.exists()
    assert "no longer fit" in done.stderr
    assert "because plan.shard = zero3: only optimizer states are sharded" in done.stderr
    assert done.stderr.count(" GiB of 59.6 GiB") == 2
    sheet = json.loads(CliRunner().invoke(command_line(), [*words, "--json"]).stdout)
    check = sheet["check"]
    assert (check["verdict"], check["refuses"]) == ("misfit", True)
    assert check["planned"]["fits"]
    assert check["written"]["peak_memory_bytes"] > 3 * check["written"]["capacity_bytes"]
    assert [part["path"] for part in check["causes"]] == ["plan.shard"]
    run(*words, "--allow-misfit")
    assert "does not fit" in (folder / "launch.sh").read_text()
    assert "| plan.shard | zero3 |" in (folder / "LEDGER.md").read_text()


def test_slower_files_are_refused_and_the_account_stands_in_the_files(tmp_path: Path) -> None:
    done = CliRunner().invoke(command_line(), ["export", EXAMPLE, "--to", "torchtitan", "-o", str(tmp_path / "titan")])
    assert done.exit_code == 1
    assert "slower" in done.stderr
    assert "because plan.shard = zero1" in done.stderr
    planned = tmp_path / "moe.toml"
    planned.write_text(
        'model = "qwen3-30b-a3b"\nsystem = "64xh100-sxm"\n[workload]\nseq = 4096\nglobal_batch = 512\n'
        '[plan]\ntp = 2\npp = 2\nrecompute = "full"\nshard = "none"\n'
    )  # a trainer has neither tensor nor pipeline ranks: another run, however welcome its speed
    done = CliRunner().invoke(command_line(), ["export", str(planned), "--to", "accelerate", "-o", str(tmp_path / "a")])
    assert (done.exit_code, (tmp_path / "a").exists()) == (1, False)
    assert "faster" in done.stderr
    run("export", EXAMPLE, "--to", "megatron", "-o", str(tmp_path))
    head = (tmp_path / "launch.sh").read_text().split("set -euo")[0]
    assert "(the same)" in head
    assert "| plan.tp | --tensor-model-parallel-size |" in (tmp_path / "LEDGER.md").read_text()


def test_chips_that_a_target_does_not_run_on_are_refused() -> None:
    for target, system in (("megatron", "64xtpu-v5p"), ("maxtext", "64xascend-910b2"), ("mindspeed", "64xh100-sxm")):
        words = ["export", EXAMPLE, "--to", target, "--set", f"system={system}", "--set", "plan.engine=generic"]
        with pytest.raises(InputError, match="it runs on chips of"):
            run(*words)
