"""What a verb decides the function of its name decides: which kind of file it is, what is refused, what is written."""

from __future__ import annotations

from pathlib import Path

import pytest

import ridgeline
from ridgeline.calibrate import collectives, cross_validate
from ridgeline.comm import CollectiveTime
from ridgeline.comm.formats import CollectiveFile, write_collective
from ridgeline.core.errors import InputError
from ridgeline.runtime.train import RunOptions
from ridgeline.search import DeploymentAnswer

TINY = "examples/tiny-2xcpu.toml"
SMALL = {"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"seq": 4096, "global_batch": 64}}


def refused(found: pytest.ExceptionInfo[InputError]) -> list[str]:
    return [problem.path for problem in found.value.problems]


class TestPlan:
    def test_a_scenario_of_serving_is_planned_so_without_being_told(self, tmp_path: Path) -> None:
        file = tmp_path / "serve.toml"
        file.write_text(
            'model = "llama3-8b"\nsystem = "1xh100-sxm"\n[workload]\nkind = "serve"\nisl = 128\nosl = 16\n'
            'requests = 20\narrivals = { kind = "poisson", rate = 2 }\nobjective = { ttft = "2 s" }\n',
            encoding="utf-8",
        )
        found = ridgeline.plan(str(file), settings=["plan.tp=1", "plan.precision=bf16", "plan.serving.pools=none"])
        assert isinstance(found, DeploymentAnswer)

    @pytest.mark.parametrize(
        ("serve", "option", "path"), [(True, {"seq": 4096}, "--seq"), (False, {"rate": 4.0}, "--rate")]
    )
    def test_options_of_the_other_kind_are_refused(self, serve: bool, option: dict[str, float], path: str) -> None:
        with pytest.raises(InputError) as found:
            ridgeline.plan("llama3-8b", on="8xh100-sxm", serve=serve, **option)  # type: ignore[call-overload]
        assert refused(found) == [path]


class TestExport:
    def test_files_that_would_not_run_as_planned_are_not_written(self, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        found = ridgeline.export(ridgeline.scenario(SMALL), to="torchtitan", output=folder)
        assert found.check is not None
        assert found.check.refuses
        assert not folder.exists()
        ridgeline.export(ridgeline.scenario(SMALL), to="torchtitan", output=folder, allow_misfit=True)
        assert {path.name for path in folder.iterdir()} == set(found.files)
        with pytest.raises(InputError) as again:
            ridgeline.export(ridgeline.scenario(SMALL), to="torchtitan", output=folder, allow_misfit=True)
        assert set(refused(again)) == {"--output"}
        ridgeline.export(ridgeline.scenario(SMALL), to="torchtitan", output=folder, allow_misfit=True, force=True)

    def test_a_file_of_a_scenario_with_settings(self) -> None:
        found = ridgeline.export(
            Path("examples/llama3-70b-64xh100.toml"), to="megatron", settings=["plan.microbatch=2"]
        )
        assert any("--micro-batch-size" in text for text in found.files.values())
        assert found.expressed["plan.microbatch"] == "--micro-batch-size"


def test_an_imported_run_without_a_machine_is_no_scenario(tmp_path: Path) -> None:
    text = ridgeline.export(ridgeline.scenario(SMALL), to="torchtitan").files["job.toml"]
    files = {"job.toml": "\n".join(line for line in text.splitlines() if not line.startswith("#"))}
    with pytest.raises(InputError) as found:
        ridgeline.scenario_text(ridgeline.import_run(files))
    assert "--on" in refused(found)
    file = tmp_path / "again.toml"
    text = ridgeline.scenario_text(ridgeline.import_run(files, system="8xh100-sxm", model="llama3-8b"))
    file.write_text(text, encoding="utf-8")
    assert ridgeline.read_scenario(file).system.chips == 8


class TestFit:
    def test_a_calibration_is_of_runs(self, tmp_path: Path) -> None:
        with pytest.raises(InputError) as found:
            ridgeline.fit(output=tmp_path / "mine.json")
        assert refused(found) == ["-o"]

    def test_what_is_fitted_is_chosen_by_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(collectives, "fit_collectives", lambda progress: "collectives")
        monkeypatch.setattr(cross_validate, "nested_sheet", lambda progress: "nested")
        monkeypatch.setattr(cross_validate, "fit_with", lambda *runs, progress: runs)
        assert ridgeline.fit(collectives=True) == "collectives"
        assert ridgeline.fit(nested=True) == "nested"
        assert ridgeline.fit("a.csv", "b.csv") == ("a.csv", "b.csv")


class TestBringUp:
    def test_a_dump_is_of_no_model(self, tmp_path: Path) -> None:
        with pytest.raises(InputError) as found:
            ridgeline.bringup("llama3-8b", msprobe=tmp_path)
        assert refused(found) == ["MODEL"]

    def test_something_has_to_be_brought_up(self) -> None:
        with pytest.raises(InputError) as found:
            ridgeline.bringup()
        assert refused(found) == ["MODEL"]

    def test_a_fingerprint_needs_a_profile(self) -> None:
        with pytest.raises(InputError) as found:
            ridgeline.bringup("llama3-8b", save_fingerprint=True)
        assert refused(found) == ["--save-fingerprint"]


class TestCollective:
    def test_a_file_is_checked_and_timed_where_there_is_a_network(self, tmp_path: Path) -> None:
        file = tmp_path / "rings.json"
        write_collective(ridgeline.collective("allgather", topology="ring:4", size="1 MB").algorithm, file, "ridgeline")
        assert isinstance(ridgeline.collective_verify(file), CollectiveFile)
        timed = ridgeline.collective_verify(file, topology="ring:4", size="1 MB")
        assert isinstance(timed, CollectiveTime)
        assert timed.verification is not None
        assert timed.verification.ok
        assert isinstance(ridgeline.collective_verify(file, timed=True), CollectiveTime)

    def test_limits_of_software_without_any_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError) as found:
            ridgeline.collective_verify(tmp_path / "a.xml", profile="hccl")
        assert refused(found) == ["--to"]

    def test_algorithms_are_listed_on_a_torus_unless_told_otherwise(self) -> None:
        assert ridgeline.collective_list().ranks == 16
        assert ridgeline.collective_list(topology="ring:8").ranks == 8


class TestRun:
    def test_a_dry_run_traces_a_step(self) -> None:
        assert ridgeline.dry_run(ridgeline.read_scenario(TINY)).equal

    def test_a_script_of_slurm_names_the_file_and_what_differs(self, tmp_path: Path) -> None:
        path = tmp_path / "run.sbatch"
        ridgeline.write_sbatch(path, TINY, RunOptions(steps=3, device=""), ["plan.microbatch=1"])
        text = path.read_text("utf-8")
        assert TINY in text
        assert "--steps 3" in text
        assert "plan.microbatch=1" in text


@pytest.mark.slow
def test_a_model_by_its_function_is_captured(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "import torch\nfrom transformers import AutoModelForCausalLM, LlamaConfig\n\n\ndef build():\n"
        "    config = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,"
        " num_key_value_heads=4, vocab_size=128)\n"
        "    return AutoModelForCausalLM.from_config(config), (torch.zeros(1, 8, dtype=torch.long),)\n",
        encoding="utf-8",
    )
    notes: list[str] = []
    found = ridgeline.scenario_of(f"{file}:build", on="1xh100-sxm", note=notes.append)
    assert found.model.layers == 2
    assert notes == [f"capturing {file}:build"]


def test_a_profile_is_reported_as_the_verb_prints_it() -> None:
    found = ridgeline.profile_report(ridgeline.profile("src/ridgeline/cost/profiles/h200-sxm.json"))
    assert found.chip is not None
    assert found.chip.id == "h200-sxm"
    assert {"product bf16", "copy"} <= {ceiling.name for ceiling in found.ceilings}
