"""Options that nobody read: named, judged by the software's own list, and a wider prediction."""

from __future__ import annotations

import math

import pytest

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.plan.unread import LOG_WIDTHS
from ridgeline.targets import TRAIN
from ridgeline.targets.api import export, import_run
from ridgeline.targets.imports.unread_effects import OTHER, is_documented
from ridgeline.targets.tables import tables

MEGATRON = (
    "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128"
    " --max-position-embeddings 128 --micro-batch-size 1 --global-batch-size 8 --bf16 --vocab-size 1000 {}\n"
)
AXOLOTL = (
    "base_model: NousResearch/Meta-Llama-3-8B\nsequence_len: 4096\nmicro_batch_size: 1\nbf16: true\ndatasets: []\n{}\n"
)
SYSTEMS = {
    "mindspeed": "64xascend-910b2", "maxtext": "tpu-v5p:4x4x4", "primus": "64xmi300x", "nxd-training": "64xtrn2",
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "option", "decision"),
    [
        ("--moe-num-experts=64", "moe-num-experts", "experts"),  # of a fork; Megatron's own is --num-experts
        ("--grad_checkpoint True", "grad-checkpoint", OTHER),
        ("--my-flag", "my-flag", OTHER),
        ("--use_llm_lora 16", "use-llm-lora", "adapters"),
        ("--dual-pipe-stages 2", "dual-pipe-stages", "mesh"),
    ],
)
def test_an_option_of_no_list_may_change_the_step(words: str, option: str, decision: str) -> None:
    found = import_run({"run.sh": MEGATRON.format(words)}, system="8xh100-sxm")
    [part] = found.doubtful
    assert (part.option.replace("_", "-"), part.effect, part.decision) == (option, "may change", decision)
    assert found.settings["unread"] == {decision: [f"{part.option} {part.value}".strip()]}


def test_documented_options_of_files_and_rates_change_nothing() -> None:
    found = import_run(
        {"run.sh": MEGATRON.format("--lr 1e-4 --save out --log-interval 5 --moe-aux-loss-coeff 0.01 --seed 1")},
        system="8xh100-sxm",
    )
    assert {part.effect for part in found.unread} == {"none"}
    assert "unread" not in found.settings


def test_a_documented_option_whose_name_speaks_of_the_step_may_change_it() -> None:
    found = import_run({"a.yaml": AXOLOTL.format("flash_attention: true")}, system="8xh100-sxm")
    assert [(part.option, part.decision) for part in found.doubtful] == [("train.flash_attention", "model")]


def test_the_prediction_is_wider_by_what_was_not_read() -> None:
    plain, unread = (
        ridgeline.predict(
            ridgeline.scenario(import_run({"run.sh": MEGATRON.format(words)}, system="8xh100-sxm").scenario)
        )
        for words in ("", "--moe-num-experts=64")
    )
    assert plain.step_time_s == unread.step_time_s
    before, after = (math.log(one.interval.high / one.step_time_s) for one in (plain, unread))
    assert after == pytest.approx(math.hypot(before, LOG_WIDTHS["experts"]))
    assert "moe-num-experts" in unread.interval.basis
    assert any("moe-num-experts" in note for note in unread.assumptions)


@pytest.mark.parametrize("target", TRAIN)
def test_what_ridgeline_wrote_is_read_without_doubt(target: str) -> None:
    system = SYSTEMS.get(target, "64xh100-sxm")
    for model, plan in (("llama3-8b", {"tp": 2}), ("qwen3-30b-a3b", {"tp": 2, "ep": 8})):
        table = {"model": model, "system": system, "workload": {"seq": 4096, "global_batch": 512}, "plan": plan}
        files = export(ridgeline.scenario(table), to=target).files
        assert not import_run(files, target=target, system=system).doubtful


def test_an_unread_table_says_decisions() -> None:
    table = {"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"seq": 4096, "global_batch": 64}}
    with pytest.raises(InputError, match="unread"):
        ridgeline.scenario({**table, "unread": {"experrts": ["--x"]}})
    with pytest.raises(InputError, match="list of at most"):
        ridgeline.scenario({**table, "unread": {"experts": "--x"}})
    assert ridgeline.scenario({**table, "unread": {"experts": []}}).unread == ()


def test_every_decision_has_words_and_a_width() -> None:
    assert set(tables("unread")["words"]) | {OTHER} == set(LOG_WIDTHS)
    assert is_documented("--tensor-model-parallel-size", "megatron")
    assert not is_documented("train", "axolotl")
