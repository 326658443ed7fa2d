"""Rows of the shipped tables and of hostile ones: read, filtered, made into scenarios and into seconds."""

from __future__ import annotations

import doctest
import random
import re
from collections import Counter
from pathlib import Path

import pytest

from ridgeline.calibrate.truth import row_habits, row_model, row_scenario, rows
from ridgeline.calibrate.truth.row_habits import STEPS
from ridgeline.calibrate.truth.row_scenario import measured_step_s, to_scenario
from ridgeline.calibrate.truth.rows import Row, Skipped, headline, kind_of, read_rows, where
from ridgeline.core.errors import InputError
from ridgeline.lowering.program import lower
from ridgeline.models.params import count
from ridgeline.models.spec import LatentAttention, Moe
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.sim.memory.peak import peak_memory

PAGE = Path(__file__).parents[4] / "docs" / "concepts" / "truth.md"
ROWS = {row.id: row for row in read_rows()}
MADE = {id: to_scenario(row) for id, row in ROWS.items()}
REPORTED = re.compile(r"TFLOP/s/GPU ([\d.]+)|([\d,]+(?:\.\d+)?) ?(?:TF/GPU|TFLOP/s)")


def made(id: str, **changes: str) -> Scenario:
    """The scenario of a shipped row with some cells changed; fails when there is none."""
    found = to_scenario(changed(id, **changes))
    assert isinstance(found, Scenario), found
    return found


def changed(id: str, **changes: str) -> Row:
    return Row(id=id, table="test", cells={**ROWS[id].cells, **changes})


def skipped(id: str, **changes: str) -> str:
    found = to_scenario(changed(id, **changes))
    assert isinstance(found, Skipped)
    return found.reason


@pytest.mark.parametrize(
    "module",
    [row_habits, row_model, row_scenario, rows],
    ids=lambda module: module.__name__,
)
def test_doctests(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


def test_page_runs() -> None:
    assert doctest.testfile(str(PAGE), module_relative=False).failed == 0


class TestReading:
    def test_shipped_tables(self) -> None:
        tables = Counter(row.table for row in ROWS.values())
        assert tables == {
            "training.csv": 880,
            "training_a100_single_node.csv": 238,
            "training_more.csv": 280,
            "training_layouts.csv": 297,
        }
        assert len(headline(ROWS.values())) == 436
        assert {row.source for row in ROWS.values()} >= {"mbridge", "mlperf", "dgxc", "tpu", "h200", "vtrain_single"}

    def test_kinds(self) -> None:
        assert kind_of(next(iter(ROWS.values())).cells) == "training"
        assert kind_of(["id", "accelerator", "n", "model", "isl", "osl", "metric", "value"]) == "inference"
        assert kind_of(["id", "accelerator", "kernel", "shape", "metric", "value", "unit"]) == "kernels"
        assert kind_of(["id", "colour"]) is None

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "without id, model_name"),
            (b"id,colour\na,red\n", "without model_name, gpus"),
            (b"id,system,ranks,collective,size_bytes\n", "a table of collectives"),
            (b"id,id\n", "column 'id' twice"),
            (b"id,model_name\nonly-one\n", "1 cells"),
            (b'id,model_name\n"never closed', "unexpected end of data"),
            (b"PK\x03\x04\x00\x00", "binary"),
            (b"\xff\xfe\x00", "not UTF-8"),
        ],
    )
    def test_refused_files(self, tmp_path: Path, content: bytes, message: str) -> None:
        path = tmp_path / "rows.csv"
        path.write_bytes(content)
        with pytest.raises(InputError, match=re.escape(message)):
            read_rows(path)

    def test_absent_columns_are_blank(self, tmp_path: Path) -> None:
        columns = "id,model_name,gpus,seq_len,global_batch,measured_metric,measured_value,tp,pp,micro_batch,x_chip"
        path = tmp_path / "mine.csv"
        path.write_text(f"\ufeff{columns}\nmine-1,Llama3-8B,8,8192,128,step_time_s,9.5,1,1,1,h100-sxm\n\n")
        (row,) = read_rows(path)
        scenario = to_scenario(row)
        assert isinstance(scenario, Scenario)
        assert (scenario.plan.mesh.dp, scenario.model.id) == (8, "llama3-8b")
        assert any(note.startswith("dp = 8") for note in scenario.assumptions)
        assert measured_step_s(row, scenario) == 9.5

    def test_where(self) -> None:
        kept = where(ROWS.values(), ["x_chip=h100-sxm,h200-sxm", "x_task=pretrain"])
        assert {row["x_chip"] for row in kept} == {"h100-sxm", "h200-sxm"}
        assert where(ROWS.values(), ["source=h200"]) == tuple(row for row in ROWS.values() if row.source == "h200")
        with pytest.raises(InputError, match="x_chip"):
            where(ROWS.values(), ["xchip=h100-sxm"])
        with pytest.raises(InputError, match="column=value"):
            where(ROWS.values(), ["x_chip"])


class TestScenarios:
    def test_every_full_and_core_row_is_made(self) -> None:
        lost = [
            found for id, found in MADE.items() if isinstance(found, Skipped) and ROWS[id]["x_complete"] != "partial"
        ]
        assert lost == []

    def test_partial_rows_say_what_is_missing(self) -> None:
        lost = Counter(found.reason.partition(":")[0] for found in MADE.values() if isinstance(found, Skipped))
        assert lost == {
            "tp": 55, "global_batch": 12, "gpus": 3, "seq_len": 2, "hidden": 1, "ep": 1, "micro_batch, global_batch": 1
        }  # fmt: skip

    def test_parameters_match_the_table(self) -> None:
        far: Counter[str] = Counter()
        for id, found in MADE.items():
            stated = ROWS[id]["params_b"]
            if (
                isinstance(found, Scenario)
                and stated
                and abs(count(found.model).total / 1e9 / float(stated) - 1) > 0.03
            ):
                far[ROWS[id]["model_name"]] += 1
        # the published name rounds: 7 for 6.74 and 7.72, 15 for 15.6, 30 for 31.6, 22 for 21.3
        assert far == {
            "Nemotron4-15B": 23, "Nemotron-22B": 1, "Aquila2-7B": 1, "Baichuan2-7B": 1, "LLaMA-7B": 1, "LLaMA2-7B": 2,
            "Qwen1.5-7B": 1, "Mistral-7B": 1, "Nemotron V3 Nano 30B": 1, "GPT-1.7B": 1,
            "Llama3-8B": 12,  # of flagperf, whose embedding is tied
        }  # fmt: skip

    def test_rows_as_users_would_write_them(self) -> None:
        deepseek = made("mbridge-0001")
        assert (deepseek.model.id, deepseek.system.name) == ("deepseek-v3", "256xgb300-nvl72")
        assert (deepseek.plan.schedule.name, deepseek.plan.schedule.chunks, deepseek.plan.mesh.ep) == (
            "interleaved",
            8,
            32,
        )
        assert deepseek.plan.switches.moe_dispatch == "hybridep"
        assert dict(deepseek.plan.switches.overlap) == {"moe": True}
        own = made("h200-000")
        assert isinstance(own.workload, Train)
        assert own.workload.optimizer.bytes_per_param == 4
        assert not own.model.embedding.tied

    def test_a_rows_columns_win_over_the_name(self) -> None:
        assert made("dgxc-0144").model.layers == 8
        assert made("mlperf-0104").model.vocab == 32000
        assert made("misc-0021", micro_batch="1").model.hidden == 2048
        assert made("llmfoundry-0035").model.embedding.positions == 65536

    def test_embedding_and_output_may_have_stages_of_their_own(self) -> None:
        scenario = made("mbridge-0038")  # 126 layers over 16 x 8 virtual stages
        assert scenario.plan.virtual_stages == scenario.model.layers + 2
        assert (scenario.placement[0], scenario.placement[-1], max(scenario.placement)) == (0, 0, 1)

    def test_slices_and_part_nodes(self) -> None:
        two = next(id for id, row in ROWS.items() if row["nodes_gpus_per_node"] == "2 slices x 64 chips")
        assert [tier.chips for tier in made(two).system.tiers] == [64, 128]
        part = made("mlperf-0031")  # 4 chips of each 8-chip host
        assert part.system.tiers[0].chips == 4

    def test_a_dispatcher_is_read_where_the_name_alone_tells_of_experts(self) -> None:
        """`experts` is blank, ep is not, and DeepEP stands beside the kernels: without it 22 copies of a token go."""
        row = made("automodel-0001")
        assert row.plan.switches.moe_dispatch == "deepep"
        assert any("named beside the kernels" in note for note in row.assumptions)
        assert made("automodel-0001", attention_impl="TE").plan.switches.moe_dispatch == "deepep"  # the engine's habit
        assert made("automodel-0001", attention_impl="TE", x_complete="full").plan.switches.moe_dispatch is None

    def test_recipes_of_nemo_overlap_tensor_parallelism(self) -> None:
        assert dict(made("misc-0124").plan.switches.overlap)["tp"] is True
        assert "tp" not in dict(made("misc-0124", framework="Megatron-LM").plan.switches.overlap)
        assert dict(made("misc-0124", x_tp_overlap="0").plan.switches.overlap)["tp"] is False

    def test_mtp_is_read_or_follows_the_engine(self) -> None:
        assert made("mbridge-0001").model.mtp is not None
        assert made("tpu-0028").model.mtp is None
        assert made("mbridge-0001", x_mtp="0").model.mtp is None


def fits(scenario: Scenario) -> bool:
    return peak_memory(scenario, lower(scenario)).headroom_bytes >= 0


class TestMemory:
    @pytest.mark.parametrize(
        ("id", "kind", "parts", "offloaded"),
        [
            ("misc-0201", "selective", ("norm", "moe"), 0),  # layernorm,moe
            ("mbridge-0002", "selective", ("latent-up",), 0),  # mla_up_proj, from the notes
            ("tpu-0007", "full", None, 1.0),  # custom decoder_layer_input=offload
            ("tpu-0013", "selective", ("norm", "attention", "mlp"), 1.0),  # and q, k, v, out
            ("tpu-0039", "selective", ("norm", "mlp"), 0),  # context, q, k, v on the chip
            ("tpu-0071", "selective", ("norm", "attention", "activation"), 0),  # minimal
            ("mbridge-0074", "none", None, 0.25),  # 20 of 80 layers
        ],
    )
    def test_details(self, id: str, kind: str, parts: tuple[str, ...] | None, offloaded: float) -> None:
        plan = made(id).plan
        assert (plan.recompute.kind, plan.offload.activations) == (kind, offloaded)
        assert parts is None or plan.recompute.parts == parts

    def test_part_of_the_layers(self) -> None:
        assert made("ascend2-0005").plan.recompute.layers == 1  # rg=full rm=block rn=1

    def test_unknown_is_assumed_and_said(self) -> None:
        scenario = made("mbridge-0267")
        assert scenario.plan.recompute.kind == "none"
        assert any(note.startswith("recompute = none: unknown") for note in scenario.assumptions)

    def test_unknown_is_the_least_that_fits(self) -> None:
        assert not fits(made("dgxc-0196", recompute="none"))  # stated: nothing is changed
        scenario = made("dgxc-0196")
        assert scenario.plan.recompute == STEPS[0]
        assert fits(scenario)
        assert any("with less the run would not have fitted" in note for note in scenario.assumptions)
        assert not any(note.startswith("recompute = none") for note in scenario.assumptions)

    def test_what_fits_in_no_way_is_left_alone(self) -> None:
        scenario = made("misc-0202")
        assert scenario.plan.recompute.parts == ("norm", "activation")
        assert not fits(scenario)

    def test_inputs_of_a_simulator_are_no_runs(self) -> None:
        """Read without recompute; 50257 columns unpadded on one tensor rank (docs/decisions/calibration.md)."""
        whole, split = made("vtrain_single-0003"), made("vtrain_single-0002")
        assert whole.plan.recompute.kind == split.plan.recompute.kind == "none"
        assert (whole.plan.mesh.tp, whole.engine.vocab_multiple) == (1, 1)
        assert (split.plan.mesh.tp, split.engine.vocab_multiple) == (2, 128)
        assert whole.engine.fitted_id == split.engine.fitted_id
        assert any("too fast" in note for note in whole.assumptions)
        assert made("vtrain_multi-0016").plan.recompute.kind == "full"

    def test_selective_of_experts_is_no_attention_where_it_is_fused(self) -> None:
        """A fused kernel keeps no scores: Megatron's MoE recipes recompute norms and activations instead."""
        assert made("misc-0199").plan.recompute.parts == ("norm", "activation")
        assert made("misc-0015").plan.recompute.parts == ("attention",)  # unfused attention of 2022

    def test_experts_over_tensor_ranks_where_nothing_less_fits(self) -> None:
        """Grok-1 with ep 8 on 128 chips: 75 GiB of weights a chip unless tensor ranks split experts, too."""
        scenario = made("dgxc-0188")
        assert scenario.plan.mesh.etp == scenario.plan.mesh.tp == 4
        assert fits(scenario)
        assert any(note.startswith("etp = 4") for note in scenario.assumptions)

    def test_states_are_sharded_where_the_row_does_not_say(self) -> None:
        """GLM-130B on 40 GB: 46 GiB of optimizer states a chip unless they are sharded."""
        scenario = made("paper-0007")
        assert scenario.plan.sharding.shard == "zero1"
        assert fits(scenario)
        assert not any(note.startswith("shard = none") for note in scenario.assumptions)

    def test_a_blank_microbatch_is_the_largest_that_fits_where_no_pipeline_asks_for_small_ones(self) -> None:
        """Nemotron-4 15B at tp 8: four sequences a replica, and room for all of them at once."""
        scenario = made("paper-0002")
        assert scenario.plan.microbatch == 4
        assert fits(scenario)
        assert any(note.startswith("micro_batch = 4: blank") for note in scenario.assumptions)
        assert not any(note.startswith("micro_batch = 1") for note in scenario.assumptions)
        assert made("paper-0002", micro_batch="2").plan.microbatch == 2
        assert made("misc-0025").plan.microbatch == 1  # two stages
        full = made("folding-0001")  # zero3 without recompute: two sequences do not fit
        assert full.plan.microbatch == 1
        assert not fits(made("folding-0001", micro_batch="2", recompute="none"))

    def test_single_layers_interleaved(self) -> None:
        """Llama 3: 126 layers are 8 x 16 stages less the embedding's and the head's."""
        scenario = made("misc-0226")
        assert scenario.plan.schedule.chunks == 8
        assert scenario.placement == (0, *[1] * 126, 0)
        assert fits(scenario)


class TestUnseen:
    def test_model(self) -> None:
        dense = made("mbridge-0235", model_name="Never-Seen-8B")
        assert count(dense.model).total == pytest.approx(count(made("mbridge-0235").model).total, rel=1e-3)
        assert any("not in the catalog" in note for note in dense.assumptions)
        latent = made("mbridge-0001", model_name="Never-Seen-671B")
        assert isinstance(latent.model.layer(0).mixer, LatentAttention)
        assert sum(isinstance(latent.model.layer(layer).ffn, Moe) for layer in range(61)) == 58  # params_b tells
        assert "hybrid" in skipped("mbridge-0011", model_name="Never-Seen-30B")

    def test_engine_chip_and_words(self) -> None:
        strange = made("mbridge-0001", x_engine="", framework="Something new")
        assert strange.plan.engine == "generic"  # never the best-tuned software
        assert any("'Something new' is not in the catalog" in note for note in strange.assumptions)
        assert made("h200-001", x_engine="brand-new", framework="").plan.engine == "generic"
        assert made("h200-001", x_chip="").system.chip.id == "h200-sxm"
        unknown = {"x_moe_dispatch": "carrier-pigeon", "overlap_notes": ""}
        assert made("mbridge-0001", **unknown).plan.switches.moe_dispatch is None
        assert made("mbridge-0001", x_complete="partial", **unknown).plan.switches.moe_dispatch == "hybridep"  # habit
        assert made("automodel-0004").plan.switches.moe_dispatch == "deepep"  # its kernels: TE + DeepEP
        assert skipped("h200-001", x_chip="h900-sxm").startswith("x_chip: got 'h900-sxm'")

    @pytest.mark.parametrize("value", ["-1", "nan", "inf", "1e30", "0", "many", "2.5"])
    @pytest.mark.parametrize(
        "column", ["gpus", "layers", "hidden", "heads", "seq_len", "global_batch", "micro_batch", "tp"]
    )
    def test_absurd_numbers(self, column: str, value: str) -> None:
        assert skipped("mbridge-0235", **{column: value}).startswith(f"{column}: got ")

    def test_contradictions(self) -> None:
        assert skipped("mbridge-0235", dp="3").startswith("dp: tp x pp x cp x dp")
        assert skipped("mbridge-0235", micro_batch="7").startswith("micro_batch, global_batch: got")
        assert skipped("mbridge-0001", ep="").startswith("ep: blank")

    def test_never_raises(self) -> None:
        chance = random.Random(20)
        bad = [
            "",
            "-1",
            "nan",
            "1e30",
            "0",
            "x" * 5000,
            "999983",
            "\u0663",
            "DeepSeek-V3",
            "mla_moe",
            "full",
            "7",
            "true",
        ]
        columns = list(ROWS["mbridge-0001"].cells)
        for row in chance.choices(list(ROWS.values()), k=1500):
            wrong = {column: chance.choice(bad) for column in chance.sample(columns, chance.choice((1, 2, 6)))}
            odd = Row(id=row.id, table="test", cells={**row.cells, **wrong})
            found = to_scenario(odd)
            if isinstance(found, Scenario):
                measured_step_s(odd, found)
            else:
                assert found.reason
                assert "\n" not in found.reason


def converted_step_s(row: Row, scenario: Scenario) -> float | Skipped:
    """As `measured_step_s`, from the metric alone: what the given step time can be checked against."""
    return measured_step_s(Row(id=row.id, table=row.table, cells={**row.cells, "x_step_time_s": ""}), scenario)


class TestMeasured:
    def test_every_scenario_has_seconds(self) -> None:
        for id, found in MADE.items():
            if isinstance(found, Scenario):
                assert isinstance(measured_step_s(ROWS[id], found), float), id

    def test_metric_and_given_step_time_agree(self) -> None:
        checked = 0
        for id, found in MADE.items():
            if isinstance(found, Scenario) and ROWS[id]["x_step_time_s"]:
                given = float(ROWS[id]["x_step_time_s"])
                assert converted_step_s(ROWS[id], found) == pytest.approx(given, rel=1e-4), id
                checked += 1
        assert checked > 900

    def test_reported_tflops_reproduce_the_step_time(self) -> None:
        """186 rows of Megatron-Bridge and others quote TFLOP/s beside what was timed."""
        far: Counter[str] = Counter()
        near = 0
        for id, found in MADE.items():
            quoted = REPORTED.search(ROWS[id]["notes"])
            if not isinstance(found, Scenario) or not quoted or not ROWS[id]["x_step_time_s"]:
                continue
            value = quoted[1] or quoted[2]
            step = converted_step_s(changed(id, measured_metric="tflops_per_gpu", measured_value=value), found)
            assert isinstance(step, float)
            if abs(step / float(ROWS[id]["x_step_time_s"]) - 1) > 0.025:
                far[f"{ROWS[id].source} {ROWS[id]['model_name']}"] += 1
            else:
                near += 1
        # Megatron-Bridge counts sliding windows, state-space layers and adapters by formulas of its own;
        # the dgxc figures are causal though marked full
        assert near >= 166
        assert {name for name, times in far.items() if times} <= {
            "mbridge GPT-OSS-120B", "mbridge Nemotron_3_Nano", "mbridge Nemotron_3_Super", "mbridge Nemotron_3_Ultra",
            "mbridge Llama3-70B (LoRA)", "mbridge DeepSeekV4 Flash", "mbridge DeepSeek-V3", "dgxc DeepSeek-V3",
            "automodel GPT-OSS-20B", "automodel GPT-OSS-120B", "automodel Nemotron V3 Nano 30B", "tpu Gemma3-12B",
            "tpu Mistral-7B", "automodel Qwen2.5-7B (LoRA)", "automodel Qwen2.5-32B (LoRA)",
            "caraml GPT-800M (CARAML)", "flagperf Llama2-70B",  # quoted for a die, and a peak instead of a rate
        }  # fmt: skip
        assert far["mbridge DeepSeek-V3"] == 0  # two of them say that they were counted without multi-token prediction

    def test_flops_with_recompute_follow_the_published_formula(self) -> None:
        """96 B s L h^2 (1 + s/6h + V/16Lh) of the SC'21 paper, to the precision of the table."""
        scenario, row = made("misc-0001"), ROWS["misc-0001"]
        assert isinstance(scenario.workload, Train)
        hidden, layers, vocab, seq = (
            scenario.model.hidden,
            scenario.model.layers,
            scenario.model.vocab,
            scenario.workload.seq,
        )
        formula = 96 * layers * hidden**2 * (1 + seq / (6 * hidden) + vocab / (16 * layers * hidden))
        assert row_scenario.counted_flops_per_token(row, scenario) == pytest.approx(formula, rel=1e-3)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"measured_metric": "vibes"}, "measured_metric: got 'vibes'"),
            ({"measured_value": ""}, "measured_value: blank"),
            ({"measured_value": "-3"}, "measured_value: got '-3'"),
            ({"measured_value": "1e12"}, "measured_value: a step of"),
            ({"measured_metric": "mfu_pct", "measured_value": "140"}, "measured_value: got 140"),
        ],
    )
    def test_refused(self, changes: dict[str, str], message: str) -> None:
        row = changed("h200-000", x_step_time_s="", **changes)
        found = measured_step_s(row, made("h200-000"))
        assert isinstance(found, Skipped)
        assert found.reason.startswith(message)


class TestHabits:
    def test_relatives_that_tables_list_under_another_chip(self) -> None:
        assert made("flagperf-0001").system.chip.id == "a800-80-sxm"
        assert made("flagperf-0034").system.chip.id == "a100-80-sxm"

    def test_a_blank_precision_of_an_mlperf_entry_is_fp8(self) -> None:
        blank = made("mlperf-0104", precision="")
        assert blank.plan.precision.compute.peak == "fp8"
        assert any(note.startswith("precision = fp8: blank") for note in blank.assumptions)
        assert made("mbridge-0235", precision="").plan.precision.compute.id == "bf16"

    def test_sizes_that_width_and_parameters_tell(self) -> None:
        blank = {"model_name": "nobody's", "layers": "", "heads": "", "ffn_hidden": "", "kv_heads": ""}
        found = made("llmfoundry-0035", **blank)
        full = made("llmfoundry-0035")
        assert found.model.layers == pytest.approx(full.model.layers, abs=2)
        assert sum("what width and parameters suggest" in note for note in found.assumptions) == 3

    def test_gaudi_runs_its_own_software(self) -> None:
        assert made("gaudi-0001").plan.engine == "habana-megatron-deepspeed"

    def test_recompute_is_one_the_engine_has(self) -> None:
        for id, found in MADE.items():
            if isinstance(found, Scenario) and any("would not have fitted" in note for note in found.assumptions):
                recompute, supports = found.plan.recompute, found.engine.supports
                assert recompute.kind in supports.recompute, id
                if recompute.kind == "selective":
                    assert set(recompute.parts) <= {part for parts in supports.selective for part in parts}, id
