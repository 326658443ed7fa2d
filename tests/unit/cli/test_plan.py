"""`ridgeline plan`: what it prints, writes and refuses."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import ridgeline
from ridgeline.cli.main import main
from ridgeline.plan.scenario_file import scenario
from ridgeline.search.deployment import find_deployment as deployment
from ridgeline.search.training import plan_search as library
from ridgeline.search.training import recommendation as verb

ROOT = Path(__file__).parents[3]
EXAMPLE = str(ROOT / "examples" / "llama3-70b-64xh100.toml")
SMALL = ("llama3-8b", "--on", "8xh100-sxm", "--seq", "4096", "--global-batch", "64")
NEAR = ("--set", "plan.tp=1,2", "--set", "plan.pp=1,2", "--set", "plan.cp=1", "--set", "plan.microbatch=1,2")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ridgeline", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        code = caught.value.code
        return (code if isinstance(code, int) else 0), out, err

    return call


def test_page(run: Any) -> None:
    code, out, err = run("plan", *SMALL)
    assert (code, err) == (0, "")
    for text in (
        "llama3-8b on 8xh100-sxm, 64 x 4096 tokens a step", "plan ", "MFU", "GiB of", "instead", "loses", "limited by",
        "how sure", "next", "--set plan.precision=fp8", "frontier", "assumed", "engine = megatron-core: not given; the",
        "headroom = 8.1% of memory kept free: the largest shortfall of 20 measured peaks", "plans priced", "fit",
    ):  # fmt: skip
        assert text in out, text
    assert "seq = " not in out


def test_json(run: Any) -> None:
    code, out, _ = run("plan", *SMALL, "--json", "--top", "3")
    sheet = json.loads(out)
    assert code == 0
    assert {
        "considered",
        "feasible",
        "seconds",
        "cpu_seconds",
        "plans",
        "frontier",
        "assumptions",
        "next",
        "complete",
    } <= set(sheet)
    assert sheet["complete"] is True
    assert sheet["considered"] > sheet["feasible"] > 0
    assert len(sheet["plans"]) == 3
    keys = {"plan", "step_time_s", "tokens_per_s_per_chip", "mfu", "peak_memory_bytes", "interval", "why"}
    assert all(keys <= set(plan) for plan in sheet["plans"])
    times = [plan["step_time_s"] for plan in sheet["plans"]]
    assert times == sorted(times)
    assert all(plan["peak_memory_bytes"] <= 0.97 * sheet["capacity_bytes"] for plan in sheet["plans"])
    assert "days" not in sheet
    for plan in sheet["plans"]:
        assert plan["simulated_s"] == pytest.approx(plan["step_time_s"], rel=0.05)
    for loss in sheet["why"]:
        assert sum(loss["parts"].values()) == pytest.approx(loss["loses_s"], abs=1e-9)
    assert 1 <= len(sheet["next"]) <= 3
    points = [(point["step_time_s"], point["peak_memory_bytes"]) for point in sheet["frontier"]]
    assert points == sorted(points)
    assert [peak for _, peak in points] == sorted((peak for _, peak in points), reverse=True)


def test_a_listed_plan_can_be_pasted(run: Any) -> None:
    sheet = json.loads(run("plan", *SMALL, *NEAR, "--json")[1])
    for plan in sheet["plans"]:
        work = {"seq": 4096, "global_batch": 64}
        built = scenario({"model": "llama3-8b", "system": "8xh100-sxm", "workload": work, "plan": plan["plan"]})
        assert library.predict(built).step_time_s == pytest.approx(plan["step_time_s"], rel=1e-12)  # type: ignore[union-attr]


def test_what_it_writes_predicts_the_same(run: Any, tmp_path: Path) -> None:
    target = tmp_path / "found.toml"
    code, out, _ = run("plan", *SMALL, *NEAR, "--set", "chip.hbm.bandwidth=3 TB/s", "--json", "-o", str(target))
    assert code == 0
    sheet, again = json.loads(out), json.loads(run("predict", str(target), "--json")[1])
    assert again["step_time_s"] == pytest.approx(sheet["handed"]["step_time_s"], rel=1e-12)
    assert again["peak_memory_bytes"] == pytest.approx(sheet["handed"]["peak_memory_bytes"])
    assert not any("not given" in note for note in again["assumptions"])
    assert any("chip.hbm.bandwidth = 3 TB/s: given" in note for note in again["assumptions"])


UNEVEN = (*SMALL, "--set", "plan.pp=4")


def test_the_refined_plan_is_what_it_writes(run: Any, tmp_path: Path) -> None:
    target = tmp_path / "found.toml"
    code, out, _ = run("plan", *UNEVEN, "-o", str(target), "--json")
    assert code == 0
    sheet = json.loads(out)
    own = sheet["handed"]
    assert own["refined"]
    assert own["changes"]
    assert own["step_time_s"] < sheet["plans"][0]["step_time_s"]
    assert own["saves_s"] == pytest.approx(sheet["plans"][0]["step_time_s"] - own["step_time_s"])
    again = json.loads(run("predict", str(target), "--json")[1])
    assert again["step_time_s"] == pytest.approx(own["step_time_s"], rel=1e-12)
    assert again["peak_memory_bytes"] == pytest.approx(own["peak_memory_bytes"])
    assert again["peak_memory_bytes"] <= 0.97 * sheet["capacity_bytes"]
    code, out, _ = run("plan", *UNEVEN, "-o", str(target))
    assert f"written: {target}, the refined plan" in out
    assert "refined" in out
    code, out, _ = run("plan", *UNEVEN, "-o", str(target), "--no-refine", "--json")
    sheet = json.loads(out)
    assert (sheet["handed"]["refined"], sheet["refined"]) == (False, [])
    again = json.loads(run("predict", str(target), "--json")[1])
    assert again["step_time_s"] == pytest.approx(sheet["plans"][0]["step_time_s"], rel=1e-12)


def test_the_list_shows_plans_of_different_kinds(run: Any) -> None:
    sheet = json.loads(run("plan", *SMALL, "--json", "--no-refine")[1])
    kinds = [plan["family"] for plan in sheet["kinds"]]
    assert len(kinds) == len(set(kinds)) == 5
    assert sheet["kinds"][0]["plan"] == sheet["plans"][0]["plan"]
    assert [plan["step_time_s"] for plan in sheet["kinds"]] == sorted(plan["step_time_s"] for plan in sheet["kinds"])


def test_an_interrupt_of_the_reasons_tells_the_plan(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = verb.simulated_step_s

    def interrupted(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return real(*arguments)

    monkeypatch.setattr(verb, "simulated_step_s", interrupted)
    code, out, _ = run("plan", *SMALL)
    assert code == 130
    assert "before all reasons were found" in out
    assert "instead" in out
    sheet = json.loads(run("plan", *SMALL, "--json")[1])
    assert (sheet["complete"], sheet["explained"]) == (True, False)
    assert [plan["simulated_s"] is None for plan in sheet["plans"]] == [False, True, True, True, True]
    assert sheet["tried"]
    assert (sheet["refined"], sheet["handed"]["refined"]) == ([], False)


def test_a_model_file_is_written_into_the_scenario(run: Any, tmp_path: Path) -> None:
    config = tmp_path / "model" / "config.json"
    config.parent.mkdir()
    sizes = {
        "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16,
        "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 32000, "max_position_embeddings": 2048,
        "tie_word_embeddings": False, "rope_scaling": None,
    }  # fmt: skip
    config.write_text(json.dumps(sizes), encoding="utf-8")
    target = tmp_path / "else" / "found.toml"
    target.parent.mkdir()
    code, out, _ = run("plan", str(config), "--on", "8xa100-80-sxm", "--json", "-o", str(target))
    assert code == 0
    sheet = json.loads(out)
    assert sheet["seq"] == 2048  # the model was made for no more
    again = json.loads(run("predict", str(target), "--json")[1])
    assert again["step_time_s"] == pytest.approx(sheet["handed"]["step_time_s"], rel=1e-12)


def test_a_scenario_file_says_where_its_plan_stands(run: Any) -> None:
    code, out, _ = run("plan", EXAMPLE, "--json", "--set", "plan.tp=4,8", "--set", "plan.cp=1")
    sheet = json.loads(out)
    assert code == 0
    assert (sheet["system"], sheet["global_batch"]) == ("64xh100-sxm", 512)
    own = json.loads(run("predict", EXAMPLE, "--json")[1])
    assert sheet["given"]["step_time_s"] == pytest.approx(own["step_time_s"])
    assert sheet["given"]["loses_s"] == pytest.approx(own["step_time_s"] - sheet["plans"][0]["step_time_s"])
    assert not any("not given" in note for note in sheet["assumptions"])
    assert "yours" in run("plan", EXAMPLE, "--set", "plan.tp=8", "--set", "plan.cp=1")[1]


def test_pins_of_a_file(run: Any, tmp_path: Path) -> None:
    space = tmp_path / "space.toml"
    space.write_text('[space]\ntp = [2, 4]\npp = 2\ncp = 1\nshard = "zero1"\n', encoding="utf-8")
    sheet = json.loads(run("plan", *SMALL, "--space", str(space), "--set", "plan.tp=4", "--json", "--top", "64")[1])
    assert {(plan["plan"]["tp"], plan["plan"]["pp"], plan["plan"]["shard"]) for plan in sheet["plans"]} == {
        (4, 2, "zero1")
    }
    space.write_text("[spaces]\ntp = 2\n", encoding="utf-8")
    code, _, err = run("plan", *SMALL, "--space", str(space))
    assert code == 2
    assert "did you mean 'space'" in err


def test_systems_side_by_side(run: Any) -> None:
    systems = "8xh100-sxm,8xtpu-v5p,8xh200-sxm"
    code, out, _ = run("plan", "llama3-8b", "--on", systems, "--global-batch", "64", "--json")
    sheet = json.loads(out)
    assert code == 0
    assert [row["system"] for row in sheet["compared"]] == systems.split(",")
    fastest = min(sheet["compared"], key=lambda row: row["step_time_s"])
    assert [row["system"] for row in sheet["compared"] if row["chosen"]] == [fastest["system"]] == [sheet["system"]]
    assert sheet["compared"][1]["engine"] == "maxtext"
    assert sheet["compared"][1]["cost_usd"] is None
    best = sheet["comparison"]
    assert (best["objective"], best["chosen"], best["coverage"]) == ("time", fastest["system"], 0.9)
    chances = {row["system"]: row["chance_better"] for row in sheet["compared"] if not row["chosen"]}
    assert best["chance_better"] == chances
    assert best["alike"] == [name for name, chance in chances.items() if chance > 0.05]
    for row in sheet["compared"]:
        assert row["interval"]["low"] < row["step_time_s"] < row["interval"]["high"]
        assert sum(row["bounds"].values()) == pytest.approx(row["step_time_s"])
    assert [item["number"] for item in sheet["compared"][1]["missing"]] == ["price", "power"]
    out = run("plan", "llama3-8b", "--on", systems, "--global-batch", "64")[1]
    assert out.index("90% interval") < out.index("plan    ") < out.index("instead")
    assert "no price of tpu-v5p: below " in out
    assert "cannot be told apart" in out or "has a chance below 5%" in out


def test_sizes_and_days(run: Any) -> None:
    asked = ("plan", "llama3-8b", "--on", "h100-sxm", "--chips", "8..32", "--tokens", "1T", "--global-batch", "64")
    code, out, _ = run(*asked, *NEAR, "--json")
    sheet = json.loads(out)
    assert code == 0
    assert [row["chips"] for row in sheet["compared"]] == [8, 16, 32]
    assert sheet["compared"][0]["efficiency"] == 1
    for row in sheet["compared"]:
        days = 1e12 / row["tokens_per_s"] / row["run"]["useful"] / 86400
        assert row["days"] == pytest.approx(days)
    assert sheet["days"] == min(row["days"] for row in sheet["compared"])
    assert sheet["frontier_axes"] == ["time", "cost"]
    out = run(*asked, *NEAR)[1]
    assert "scaling:" in out
    assert "efficiency" in out


def test_fewest_chips_for_a_deadline(run: Any) -> None:
    asked = ("plan", "llama3-8b", "--on", "h100-sxm", "--tokens", "1T", "--global-batch", "64", *NEAR)
    sheet = json.loads(run(*asked, "--days", "60", "--json")[1])
    assert sheet["objective"] == "chips"
    assert sheet["days"] <= 60
    smaller = [row for row in sheet["compared"] if row["chips"] < sheet["chips"]]
    assert smaller
    assert all(row["days"] > 60 for row in smaller if "days" in row)
    code, _, err = run(*asked, "--days", "0.5", "--chips", "8..16")
    assert code == 2
    assert "days at best" in err


def test_objectives_that_need_a_price(run: Any) -> None:
    code, _, err = run("plan", "llama3-8b", "--on", "8xtpu-v5p", "--objective", "cost", "--global-batch", "64")
    assert code == 2
    assert "--set chip.price" in err
    asked = ("plan", "llama3-8b", "--on", "8xtpu-v5p", "--objective", "cost", "--global-batch", "64")
    assert run(*asked, "--set", "chip.price=4 USD/h")[0] == 0
    small = json.loads(run("plan", *SMALL, "--objective", "memory", "--json")[1])
    fast = json.loads(run("plan", *SMALL, "--json")[1])
    assert small["plans"][0]["peak_memory_bytes"] < fast["plans"][0]["peak_memory_bytes"]


def test_for_a_target_the_files_are_written_and_mean_the_plan(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "launch"
    code, out, err = run("plan", *SMALL, *NEAR, "--to", "torchtitan", "-o", str(folder), "--json")
    sheet = json.loads(out)
    assert (code, err, sheet["to"], sheet["engine"]) == (0, "", "torchtitan", "torchtitan")
    assert {"scenario.toml", "job.toml", "launch.sh", "LEDGER.md"} <= {path.name for path in folder.iterdir()}
    assert "engine = torchtitan: what torchtitan runs" in sheet["assumptions"]
    assert all(one["gain"] > 0 and one["untold"] for one in sheet["untold"])
    code, out, err = run("export", str(folder / "scenario.toml"), "--to", "torchtitan", "--json")
    again = json.loads(out)
    assert (code, err, again["check"]["verdict"], again["lost"]) == (0, "", "same", [])
    assert again["check"]["planned"]["step_time_s"] == pytest.approx(sheet["handed"]["step_time_s"])
    assert run("import", str(folder), "--json")[0] == 0
    code, _, err = run("plan", *SMALL, *NEAR, "--to", "torchtitan", "-o", str(folder))
    assert (code, "which holds files" in err, "--force" in err) == (2, True, True)


def test_nothing_fits(run: Any) -> None:
    asked = ("plan", "llama3-70b", "--on", "8xa100-40-sxm")
    code, out, err = run(*asked)
    assert (code, out) == (2, "")
    assert "GiB too much" in err
    assert "what helps" in err
    code, out, _ = run(*asked, "--json")
    sheet = json.loads(out)
    assert (code, sheet["possible"], sheet["feasible"], sheet["plans"]) == (2, False, 0, [])
    assert sheet["problems"][0]["path"] == "memory"


STOPS = [(signal.SIGINT, 130), (signal.SIGTERM, 130)]


@pytest.mark.parametrize(("number", "exit_code"), STOPS)
def test_a_signal_prints_the_best_so_far(
    run: Any, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, exit_code: int
) -> None:
    real = library.chunks_of

    def stopped(*arguments: Any) -> Any:
        for place, chunk in enumerate(real(*arguments)):
            if place == 30:
                signal.raise_signal(number)
            yield chunk

    before = signal.getsignal(number)
    monkeypatch.setattr(library, "chunks_of", stopped)
    code, out, _ = run("plan", *SMALL[:2], "8xh100-sxm,8xh200-sxm", *SMALL[3:])
    assert code == exit_code
    assert "the best so far" in out
    assert "8xh200-sxm: not searched, stopped before" in out
    code, out, _ = run("plan", *SMALL, "--json")
    assert (code, json.loads(out)["complete"]) == (exit_code, False)
    assert signal.getsignal(number) is before


SERVED = ("llama3-8b", "--serve", "--rate", "4", "--isl", "512", "--osl", "64", "--ttft", "1s", "--tpot", "50ms")
QUICK = ("--set", "workload.requests=100", "--set", "plan.precision=bf16", "--set", "plan.serving.pools=none")


@pytest.mark.parametrize(("number", "exit_code"), STOPS)
def test_a_signal_prints_the_best_deployment_so_far(
    run: Any, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, exit_code: int
) -> None:
    real = deployment._tune_settings

    def stopped(*arguments: Any) -> Any:
        signal.raise_signal(number)
        return real(*arguments)

    monkeypatch.setattr(deployment, "_tune_settings", stopped)
    code, out, _ = run("plan", *SERVED, *QUICK, "--on", "2xh100-sxm,2xh200-sxm")
    assert code == exit_code
    assert "stopped before the search was complete: the best so far; not searched: 2xh200-sxm" in out
    assert "interval not computed" in out
    code, out, _ = run("plan", *SERVED, *QUICK, "--on", "2xh100-sxm", "--json")
    sheet = json.loads(out)
    assert (code, sheet["complete"], sheet["promise"], sheet["deployment"]["met"]) == (exit_code, False, None, True)


def test_deployments_side_by_side(run: Any) -> None:
    asked = ("plan", *SERVED, *QUICK, "--on", "2xh100-sxm,2xh200-sxm,tpu-v7x:1x1x2", "--set", "plan.tp=1")
    code, out, _ = run(*asked)
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "llama3-8b: the cheapest that holds the load"
    for text in ("* 2x", "chips for 90%", "░ to its high end", "no price of tpu-v7x: below", "which counts where not"):
        assert text in out, text
    rows = json.loads(run(*asked, "--json")[1])["compared"]
    assert [row["system"] for row in rows[:2]] == ["2xh100-sxm", "2xh200-sxm"]
    assert [row["chance_better"] is None for row in rows] == [row["chosen"] for row in rows]
    assert all(row["promise"]["chance"] > 0 and not row["problems"] for row in rows)
    assert [row["price_below_usd_per_hour"] is not None for row in rows] == [False, False, True]
    assert "compared" not in json.loads(run("plan", *SERVED, *QUICK, "--on", "2xh100-sxm", "--json")[1])


def test_a_second_interrupt_ends_it_at_once(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(library, "chunks_of", impatient)
    code, out, err = run("plan", *SMALL)
    assert (code, out) == (130, "")
    assert "stopped before there was anything to tell" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("lama3-8b", "--on", "8xh100-sxm"), "llama3-8b"),
        (("llama3-8b",), "--on"),
        (("llama3-8b", "--on", "8xh1000-sxm"), "h100-sxm"),
        ((*SMALL, "--set", "plan.tpp=8"), "did you mean 'tp'?"),
        ((*SMALL, "--set", "plan.tp=3"), "plan.tp: got 3, expected a divisor of the chips (8)"),
        ((*SMALL, "--set", "plan.tp=x"), "plan.tp: got 'x', expected a whole number"),
        ((*SMALL, "--set", "foo.bar=1"), "expected one of model"),
        ((*SMALL, "--set", "workload.kind=decode"), "workload"),
        ((*SMALL, "--set", "plan.precision=nvfp4"), "a peak h100-sxm has"),
        ((*SMALL, "--engine", "megatro"), "did you mean 'megatron-core'?"),
        ((*SMALL, "--objective", "speed"), "--objective"),
        ((*SMALL, "--objective", "chips"), "--days 30"),
        ((*SMALL, "--days", "3"), "--tokens"),
        ((*SMALL, "--days", "-3", "--tokens", "1T"), "--days"),
        ((*SMALL, "--tokens", "many"), "--tokens"),
        ((*SMALL, "--headroom", "150%"), "--headroom"),
        ((*SMALL, "--chips", "9..8"), "--chips"),
        ((*SMALL, "--frontier", "time,speed"), "--frontier"),
        (("llama3-8b", "--on", "8xh100-sxm", "--seq", "0"), "workload.seq"),
        (("llama3-8b", "--on", "8xh100-sxm", "--global-batch", "-1"), "workload.global_batch"),
        (("/etc/passwd", "--on", "8xh100-sxm"), "expected one of .toml"),
        ((*SMALL, "--to", "megatorn"), "did you mean 'megatron'?"),
        ((*SMALL, "--to", "vllm"), "expected one of"),
        ((*SMALL, "--to", "mindspeed"), "it runs on chips of Huawei, not of NVIDIA"),
        ((*SMALL, "--to", "torchtitan", "--engine", "megatron-core"), "an engine that torchtitan runs: torchtitan"),
        ((*SMALL, "--to", "torchtitan", "--set", "plan.shard=zero1"), "FSDP shards gradients with the optimizer"),
        ((*SMALL[:3], "--serve", "--isl", "512", "--osl", "64", "--to", "megatron"), "expected one of dynamo"),
        ((*SMALL[:3], "--serve", "--isl", "512", "--osl", "64", "--to", "vllm", "--engine", "sglang"), "one of vllm"),
    ],
)
def test_refusals(run: Any, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = run("plan", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_refusals_as_json(run: Any) -> None:
    code, out, err = run("plan", *SMALL, "--set", "plan.tpp=8", "--json")
    assert (code, err) == (2, "")
    sheet = json.loads(out)
    assert (sheet["possible"], sheet["problems"][0]["path"]) == (False, "plan.tpp")


def test_html_stands_alone_and_escapes(run: Any, tmp_path: Path) -> None:
    source = tmp_path / "s.toml"
    text = (
        '[workload]\nseq = 4096\nglobal_batch = 64\n[model]\nbase = "llama3-8b"\nname = "<script>alert(1)</script>"\n'
    )
    source.write_text(f'system = "8xh100-sxm"\n{text}', encoding="utf-8")
    target = tmp_path / "plan.html"
    code, _, err = run("plan", str(source), *NEAR, "--html", str(target))
    assert (code, err) == (0, "")
    page = target.read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert page.count("<circle") > 3


def test_a_folder_starts_what_was_simulated(tmp_path: Path, run: Any) -> None:
    words = ("llama3-8b", "--on", "2xh100-sxm", "--serve", "--rate", "4", "--isl", "512", "--osl", "64", "--ttft", "1s")
    pins = ("tp=1", "pp=1", "precision=bf16", "serving.pools=none", "serving.sglang.chunked_prefill_size=8192")
    pins = (*pins, "serving.sglang.max_running_requests=256")
    pinned = ("--set", "workload.requests=100", *(word for pin in pins for word in ("--set", f"plan.{pin}")))
    code, out, err = run("plan", *words, *pinned, "--to", "sglang", "-o", str(tmp_path / "deploy"))
    assert code == 0, err
    assert "sglang can express all of it" in out
    assert sorted(path.name for path in (tmp_path / "deploy").iterdir()) == [
        "LEDGER.md", "bench.sh", "launch.sh", "scenario.toml",
    ]  # fmt: skip
    found = ridgeline.read_scenario(tmp_path / "deploy" / "scenario.toml")
    again = ridgeline.export(found, to="sglang")
    assert again.files["launch.sh"] == (tmp_path / "deploy" / "launch.sh").read_text(encoding="utf-8")
    assert again.check is not None
    assert again.check.differs == ()
    code, _, err = run("plan", *words, *pinned, "--to", "sglang", "-o", str(tmp_path / "deploy"))
    assert code == 2
    assert "--force" in err
