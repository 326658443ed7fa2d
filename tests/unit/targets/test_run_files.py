"""What stands around a run's files: its checkout, never a home folder, and the machine that the caller names."""

from __future__ import annotations

from pathlib import Path

import pytest

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.targets.imports.run_files import Checkout, RunFiles, top_of
from ridgeline.targets.imports.shell_arguments import Call, with_call
from ridgeline.targets.imports.shell_eval import read_script

RUN = (
    "torchrun pretrain_gpt.py --num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 "
    "--max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 1536 --vocab-size 51200 --bf16 "
)


def _tensor_parallel(folder: Path, source: str) -> list[str] | None:
    script = read_script(f"source {source}\nrun", Checkout(folder=folder, top=top_of(folder)))
    return script.variables.get("TP")


@pytest.mark.parametrize("mark", [".git", "requirements.txt", "README.md", "__init__.py"])
def test_a_home_folder_is_no_checkout(mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    for folder in (home / ".aws", home / "Downloads" / "a", home / "project" / "conf"):
        folder.mkdir(parents=True)
    for path in (home / mark, home / "Downloads" / mark if mark == "__init__.py" else home / mark):
        path.write_text("")
    (home / ".aws" / "credentials").write_text("TP=4\n")
    (home / "beside.sh").write_text("TP=2\n")
    (home / ".hidden.sh").write_text("TP=8\n")
    (home / "project" / "setup.py").write_text("")
    (home / "project" / "env.sh").write_text("TP=1\n")
    monkeypatch.setenv("HOME", str(home))
    assert _tensor_parallel(home / "Downloads", "../.aws/credentials") is None
    assert _tensor_parallel(home / "Downloads" / "a", "../../.aws/credentials") is None
    assert _tensor_parallel(home, ".aws/credentials") is None
    assert _tensor_parallel(home, ".hidden.sh") is None
    assert _tensor_parallel(home, "beside.sh") == ["2"]
    assert _tensor_parallel(home / "project" / "conf", "../env.sh") == ["1"]


def test_a_folder_above_the_home_is_no_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users" / "u" / "run").mkdir(parents=True)
    (tmp_path / "users" / ".git").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "users" / "u"))
    assert top_of(tmp_path / "users" / "u" / "run") == tmp_path / "users" / "u" / "run"


def test_a_call_keeps_the_machine_and_the_budget() -> None:
    place = Checkout(system="64xtrn1", chips=64)
    called_files = with_call(
        RunFiles({"run.sh": "run $1"}, place), Call(path="run.sh", arguments=("7B",), environment={})
    )
    assert called_files.checkout.system == "64xtrn1"
    assert called_files.checkout.budget is place.budget
    assert read_script("run $1", called_files.checkout).commands == [["run", "7B"]]


def test_import_says_the_chips_that_a_split_takes(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(RUN + "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16\n")
    notes = ridgeline.import_run(tmp_path / "run.sh", system="8xh100-sxm").assumptions
    assert any("tp 8 takes 128 chips" in note and "--on 128xh100-sxm" in note for note in notes)
    notes = ridgeline.import_run(tmp_path / "run.sh", system="256xh100-sxm").assumptions
    assert not any("takes 128 chips" in note for note in notes)


def test_two_stages_of_zero_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(RUN.replace("torchrun", "deepspeed") + "--zero-stage 1 2 --deepspeed\n")
    with pytest.raises(InputError, match=r"--zero-stage: got \[1, 2\], expected 0, 1, 2 or 3"):
        ridgeline.import_run(tmp_path / "run.sh", system="8xh100-sxm")
