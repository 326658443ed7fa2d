"""Every engine file decodes, names only what Ridgeline knows, and states the facts its source states."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from ridgeline.core.catalog import Catalog
from ridgeline.core.dtype import ALIASES, DTYPES, dtype
from ridgeline.core.errors import InputError, UnknownId
from ridgeline.core.evidence import Evidence
from ridgeline.hardware.load import CHIPS, system
from ridgeline.ir.fusions import FUSIONS
from ridgeline.plan.engine import ENGINES, OVERLAPS, Engine, default_engine, read_engine
from ridgeline.plan.schedules import SCHEDULES

PAGE = Path(__file__).parents[3] / "docs" / "concepts" / "engines.md"
# every software named in the truth table of training runs
TRUTH = (
    "fms-fsdp", "levanter", "llm-foundry", "llmboost", "maxtext", "megascale", "megatron-2021", "megatron-bridge",
    "megatron-core", "megatron-deepspeed", "meta-internal", "mindspeed", "mlperf-nvidia", "nemo", "nemo-automodel",
    "paxml", "primus", "rocm-mlperf", "torch-compile", "torch-eager", "torchtitan",
)  # fmt: skip
GOOD = """
name = "x"
source = "x"
evidence = "assumed"
[launch]
mode = "eager"
[supports]
"""


def catalog(folder: Path, text: str) -> Catalog[Engine]:
    (folder / "mine.toml").write_text(text)
    return Catalog("engine", folder, read_engine)


def test_the_catalog_holds_every_engine_of_the_truth_table() -> None:
    assert set(TRUTH) <= set(ENGINES)
    assert "deepspeed" in ENGINES


def test_every_vendor_has_one_default_engine() -> None:
    named = [vendor for id in ENGINES for vendor in ENGINES[id].default_for]
    assert len(named) == len(set(named))
    assert set(named) - {"*"} <= {CHIPS[id].vendor for id in CHIPS}, "a vendor whose chips the catalog holds"
    assert named.count("*") == 1
    chips = {"tpu-v5p": "maxtext", "ascend-910b": "mindspeed", "h100-sxm": "megatron-core", "mi300x": "megatron-core"}
    assert {id: default_engine(system(f"8x{id}")) for id in chips} == chips
    assert default_engine(None) == "megatron-core"


@pytest.mark.parametrize("id", sorted(ENGINES))
def test_a_file_decodes_and_says_where_it_is_known_from(id: str) -> None:
    engine = ENGINES[id]
    assert engine.id == id
    assert engine.evidence in (Evidence.DATASHEET, Evidence.ASSUMED)
    assert len(engine.source) > 20
    assert len(engine.notes) > 100, "notes say what can be switched and what is weak"


@pytest.mark.parametrize("id", sorted(ENGINES))
def test_a_file_names_only_what_ridgeline_knows(id: str) -> None:
    engine = ENGINES[id]
    assert set(engine.supports.schedules) <= set(SCHEDULES)
    assert set(engine.supports.precision) <= {*DTYPES, *ALIASES}
    lists = (engine.fuses, engine.overlaps, *(getattr(engine.supports, key) for key in ("schedules", "shard", "axes")))
    for words in lists:
        assert len(set(words)) == len(words), f"{words} names something twice"


@pytest.mark.parametrize("id", sorted(ENGINES))
def test_what_a_file_says_together_is_possible(id: str) -> None:
    engine = ENGINES[id]
    axes, supports = set(engine.supports.axes), engine.supports
    assert ("pp" in axes) == bool(supports.schedules) or engine.serves is not None
    assert "dp" in axes
    assert "sp" not in axes or "tp" in axes
    for overlap, axis in (("tp", "tp"), ("pp", "pp"), ("cp", "cp"), ("moe", "ep")):
        assert overlap not in engine.overlaps or axis in axes
    assert "param-gather" not in engine.overlaps or set(supports.shard) != {"none"}
    assert "offload" not in engine.overlaps or supports.offload
    if engine.attention == "unfused" and engine.launch.mode == "eager":
        assert "masked-softmax" in engine.fuses
    if engine.launch.mode in ("compiled", "xla"):
        assert {"elementwise", "norm"} <= set(engine.fuses)
    else:
        assert "elementwise" not in engine.fuses


def test_an_unknown_fusion_is_refused_with_the_nearest_word(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'bias-activaton'.*did you mean 'bias-activation'\?") as wrong:
        catalog(tmp_path, 'fuses = ["norm", "bias-activaton"]\n' + GOOD)["mine"]
    assert [problem.path for problem in wrong.value.problems] == ["fuses"]


def test_an_unknown_overlap_is_refused_with_the_nearest_word(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"overlaps: got 'grad_reduce'.*did you mean 'grad-reduce'\?"):
        catalog(tmp_path, 'overlaps = ["grad_reduce"]\n' + GOOD)["mine"]


def test_an_unknown_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"overlap.*did you mean 'overlaps'"):
        catalog(tmp_path, 'overlap = ["tp"]\n' + GOOD)["mine"]
    assert catalog(tmp_path, 'aliases = ["My Engine"]\n' + GOOD)["my_engine"].id == "mine"


@pytest.mark.parametrize(
    ("alias", "id"),
    [
        ("ModelLink", "mindspeed"),
        ("MindSpeed-LLM", "mindspeed"),
        ("Megatron-LM", "megatron-core"),
        ("GPT-NeoX", "megatron-deepspeed"),
        ("Composer", "llm-foundry"),
        ("PAX", "paxml"),
        ("torch.compile", "torch-compile"),
    ],
)
def test_a_name_people_use_resolves(alias: str, id: str) -> None:
    assert ENGINES[alias].id == id


def test_an_unknown_engine_lists_near_ones() -> None:
    with pytest.raises(UnknownId, match="torchtitan"):
        ENGINES["torchtitn"]


def test_megatron_2021() -> None:
    """megatron/arguments.py of early 2022: fusion flags on, fp32 gradients only with bf16; arXiv:2104.04473."""
    engine = ENGINES["megatron-2021"]
    assert engine.supports.shard == ("none",), "the distributed optimizer came later"
    assert engine.attention == "unfused"
    assert (engine.gradients, engine.fp16_gradients) == (dtype("fp32"), dtype("fp16"))
    assert {"masked-softmax", "bias-activation", "bias-dropout-add"} <= set(engine.fuses)
    assert "weight-gradient-accumulation" not in engine.fuses
    assert engine.overlaps == ()
    assert engine.vocab_multiple == 128
    assert {"1f1b", "interleaved"} == set(engine.supports.schedules)
    assert not {"cp", "ep"} & set(engine.supports.axes)


def test_megatron_core_and_its_recipes_differ() -> None:
    """arguments.py keeps --tp-comm-overlap and fused cross-entropy off; NeMo's performance recipes switch them on."""
    core, nemo, bridge = (ENGINES[id] for id in ("megatron-core", "nemo", "megatron-bridge"))
    assert "tp" not in core.overlaps
    assert "tp" in nemo.overlaps
    assert set(nemo.fuses) - set(core.fuses) == {"cross-entropy"}
    assert "weight-gradient-accumulation" in core.fuses
    assert core.gradients == dtype("fp32")
    assert bridge.gradients == dtype("bf16"), "performance recipes set grad_reduce_in_fp32 = False"
    assert (core.vocab_multiple, bridge.vocab_multiple) == (128, 1), "should_pad_vocab is off in Megatron-Bridge"


def test_torch_eager_fuses_only_what_is_a_library_kernel() -> None:
    engine = ENGINES["torch-eager"]
    assert set(engine.fuses) == {"norm", "optimizer"}
    assert engine.launch.mode == "eager"
    assert set(engine.fuses) < set(ENGINES["torch-compile"].fuses)


@pytest.mark.parametrize("id", ["maxtext", "paxml", "levanter"])
def test_jax_engines_run_one_program(id: str) -> None:
    assert ENGINES[id].launch.mode == "xla"
    assert not {"1f1b", "interleaved"} & set(ENGINES[id].supports.schedules), "a scan and its derivative is gpipe"


def test_torchtitan_reduces_in_fp32() -> None:
    """job_config.py: mixed_precision_reduce is Literal["float32"]."""
    engine = ENGINES["torchtitan"]
    assert engine.gradients == dtype("fp32")
    assert set(engine.supports.schedules) == {"gpipe", "1f1b", "interleaved", "zbv", "dualpipe-v"}
    assert "tp" not in engine.overlaps, "enable_async_tensor_parallel is False by default"


def test_pure_fsdp_stacks_have_no_pipeline() -> None:
    for id in ("llm-foundry", "fms-fsdp"):
        assert ENGINES[id].supports.schedules == ()
        assert "zero3" in ENGINES[id].supports.shard
        assert ENGINES[id].gradients == dtype("bf16")


def test_dualpipe_v_is_mindspeeds() -> None:
    """docs/zh/features/dualpipev.md: --schedules-method dualpipev; overlap of experts is a further flag."""
    engine = ENGINES["mindspeed"]
    assert "dualpipe-v" in engine.supports.schedules
    assert not {"moe", "tp"} & set(engine.overlaps)


def test_the_page_runs_and_lists_both_vocabularies() -> None:
    failed, attempted = doctest.testfile(str(PAGE), module_relative=False)
    assert (failed, attempted > 5) == (0, True)
    text = PAGE.read_text()
    fusions = {word: fusion.meaning for word, fusion in FUSIONS.items()}
    for word, meaning in (*fusions.items(), *OVERLAPS.items()):
        assert f"| `{word}` | {meaning} |" in text
