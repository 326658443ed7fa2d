"""Every catalog model loads, counts the parameters its publisher states, and answers to the names people use."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline.core.errors import InputError, UnknownId
from ridgeline.models.load import MODELS, find_name, model
from ridgeline.models.params import count

ROOT = Path(__file__).parents[3]
NAMES = ROOT / "tests" / "data" / "truth_model_names.txt"
TRUTH = ROOT.parent / "shared" / "truth"

# Exact counts: of the published weights, or of transformers' own model built from the published config (multi-token
# prediction apart). An entry here fixes every dim that has parameters.
EXACT = {
    "baichuan-13b": 13_264_901_120,
    "baichuan-7b": 7_000_559_616,
    "baichuan2-7b": 7_505_973_248,
    "bloom-176b": 176_247_271_424,
    "bloom-7b1": 7_069_016_064,
    "codellama-13b": 13_016_028_160,
    "codellama-34b": 33_743_970_304,
    "deepseek-r1": 671_026_404_352,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_404_352,
    "falcon-40b": 41_303_293_952,
    "falcon-7b": 6_921_720_704,
    "gemma2-27b": 27_227_128_320,
    "gemma2-9b": 9_241_705_984,
    "gemma3-12b": 12_187_325_040,
    "gemma3-27b": 27_432_406_640,
    "gemma3-4b": 4_300_079_472,
    "gemma4-26b-a4b": 25_805_933_872,
    "gemma4-31b": 31_273_086_512,
    "glm-4.5": 352_797_814_784,
    "glm-4.5-air": 106_852_245_504,
    "glm-5": 743_911_199_232,
    "glm-5.2": 743_377_000_704,
    "gpt-neox-20b": 20_554_567_680,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "gpt2": 124_439_808,
    "gpt2-large": 774_030_080,
    "gpt2-medium": 354_823_168,
    "gpt2-xl": 1_557_611_200,
    "kimi-k2.5": 1_026_879_353_328,
    "llama1-13b": 13_015_864_320,
    "llama1-33b": 32_528_943_616,
    "llama1-65b": 65_285_660_672,
    "llama1-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama2-7b": 6_738_415_616,
    "llama3-70b": 70_553_706_496,
    "llama3-8b": 8_030_261_248,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "llama4-maverick": 401_583_781_376,
    "llama4-scout": 108_641_793_536,
    "llava-1.5-7b": 7_063_427_072,
    "mamba2-2.7b": 2_702_599_680,
    "minimax-m2": 228_689_748_992,
    "mistral-7b": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mistral-large-123b": 122_610_069_504,
    "mistral-nemo-12b": 12_247_782_400,
    "mixtral-8x22b": 140_630_071_296,
    "mixtral-8x7b": 46_702_792_704,
    "nemotron-h-56b": 56_324_350_464,
    "nemotron-h-8b": 8_100_852_736,
    "nemotron3-nano-30b-a3b": 31_577_937_344,
    "nemotron3-super-120b-a12b": 120_668_687_360,
    "nemotron3-ultra-550b-a55b": 549_308_968_960,
    "opt-1.3b": 1_315_758_080,
    "opt-125m": 125_239_296,
    "opt-13b": 12_853_473_280,
    "opt-6.7b": 6_658_473_984,
    "opt-66b": 65_719_701_504,
    "phi3-medium": 13_960_238_080,
    "phi3-mini": 3_821_079_552,
    "phi4": 14_659_507_200,
    "qwen-14b": 14_167_290_880,
    "qwen-72b": 72_287_920_128,
    "qwen1.5-0.5b": 463_987_712,
    "qwen1.5-1.8b": 1_836_828_672,
    "qwen1.5-4b": 3_950_369_280,
    "qwen1.5-7b": 7_721_324_544,
    "qwen2-0.5b": 494_032_768,
    "qwen2-1.5b": 1_543_714_304,
    "qwen2-72b": 72_706_203_648,
    "qwen2-7b": 7_615_616_512,
    "qwen2-vl-7b": 8_291_375_616,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-14b": 14_768_307_200,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-32b": 32_762_123_264,
    "qwen3-8b": 8_190_735_360,
    "qwen3-coder-480b-a35b": 480_154_875_392,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "qwen3-vl-235b-a22b": 235_670_022_896,
    "qwen3-vl-30b-a3b": 31_070_754_032,
    "qwen3-vl-32b": 33_357_390_064,
    "qwen3-vl-8b": 8_767_123_696,
    "qwen3.5-122b-a10b": 122_562_817_776,
    "qwen3.5-27b": 27_356_728_560,
    "qwen3.5-35b-a3b": 35_107_181_936,
    "qwen3.5-397b-a17b": 396_802_360_816,
    "yi-34b": 34_388_917_248,
}
# Published rounded: billions, and how far a count may be from them (rounding of the figure, or a stated approximation).
NEAR = {
    "aquila2-34b": (33.7, 0.01),
    "deepseek-v3.2": (671.9, 0.001),
    "deepseek-v4-flash": (284.33, 0.003),
    "falcon-180b": (180, 0.01),
    "gpt3-125m": (0.125, 0.01),
    "gpt3-13b": (12.9, 0.01),
    "gpt3-175b": (175, 0.005),
    "gpt3-2.7b": (2.65, 0.01),
    "gpt3-350m": (0.356, 0.01),
    "gpt3-5b": (5.05, 0.01),
    "gpt3-6.7b": (6.65, 0.01),
    "gpt3-760m": (0.760, 0.01),
    "gptj-6b": (6.053, 0.001),
    "grok1-314b": (314, 0.01),
    "grok1-40b": (40, 0.01),
    "kimi-k2": (1026.5, 0.001),
    "longcat-flash": (560, 0.005),
    "maxtext-22b": (22.1, 0.01),
    "megatron-1.7b": (1.7, 0.03),
    "megatron-1008b": (1008.0, 0.001),
    "megatron-145.6b": (145.6, 0.001),
    "megatron-18.4b": (18.4, 0.004),
    "megatron-22b": (22, 0.01),
    "megatron-3.6b": (3.6, 0.012),
    "megatron-310.1b": (310.1, 0.001),
    "megatron-39.1b": (39.1, 0.001),
    "megatron-529.6b": (529.6, 0.001),
    "megatron-7.5b": (7.5, 0.005),
    "megatron-76.1b": (76.1, 0.001),
    "megatron-core-16b": (16.1, 0.01),
    "megatron-core-177b": (177, 0.005),
    "megatron-core-314b": (314, 0.005),
    "megatron-core-7.1b": (7.1, 0.01),
    "mpt-13b": (12.854, 0.001),
    "mpt-30b": (29.975, 0.001),
    "mpt-70b": (64.862, 0.001),
    "mpt-7b": (6.659, 0.001),
    "mt-nlg-530b": (530, 0.005),
    "nemotron4-15b": (15.6, 0.01),
    "nemotron4-340b": (341, 0.005),
    "vtrain-0.709b": (0.709, 0.001),
    "vtrain-1.313b": (1.313, 0.001),
}
# Billions one token passes through, as published.
ACTIVE = {
    "deepseek-v3": (37.5, 0.01),  # 37B, embedding apart
    "deepseek-v4-flash": (13.8, 0.05),  # attention is approximated
    "gpt-oss-120b": (5.71, 0.01),  # 5.13B without the embedding rows
    "kimi-k2": (32.9, 0.01),
    "longcat-flash": (27, 0.05),
    "mixtral-8x7b": (12.9, 0.01),
    "nemotron3-super-120b-a12b": (12.7, 0.01),
    "qwen3-235b-a22b": (22.2, 0.01),
    "qwen3-30b-a3b": (3.35, 0.01),
}
# Names of the truth tables that no entry can answer, and why.
UNRESOLVED = {
    "LLM (unspecified)": "names no model",
    "GPT2-13B": "Levanter's release notes give no dims for it",
}


@pytest.mark.parametrize("id", MODELS)
def test_entry_loads_and_says_where_it_is_from(id: str) -> None:
    spec, table = MODELS[id], MODELS.table(id)
    assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*", id)
    assert spec.id == id
    assert spec.name
    assert len(spec.source) > 8
    assert list(table)[:2] == ["name", "source"]
    assert spec.layers == table["layers"]


def test_catalog_is_large_and_no_name_is_claimed_twice() -> None:
    assert len(MODELS) >= 80
    assert len(MODELS.aliases) >= len(MODELS)


@pytest.mark.parametrize("id", EXACT)
def test_exact_parameter_count(id: str) -> None:
    assert count(MODELS[id]).total == EXACT[id]


@pytest.mark.parametrize("id", NEAR)
def test_published_parameter_count(id: str) -> None:
    billions, tolerance = NEAR[id]
    assert count(MODELS[id]).total == pytest.approx(billions * 1e9, rel=tolerance)


@pytest.mark.parametrize("id", ACTIVE)
def test_published_active_count(id: str) -> None:
    billions, tolerance = ACTIVE[id]
    assert count(MODELS[id]).active == pytest.approx(billions * 1e9, rel=tolerance)


def test_multi_token_prediction_is_apart() -> None:
    parts = count(MODELS["deepseek-v3"])
    assert parts.total_with_mtp - parts.total == pytest.approx(
        11.6e9, rel=0.01
    )  # 14B with its copies of both embeddings


def test_multi_token_prediction_of_another_shape_than_the_last_layer() -> None:
    glm = MODELS["glm-5.2"]
    assert glm.mtp is not None
    assert glm.mtp.block == glm.layer(6)  # the published weights hold an indexer there; the last layer has none
    assert glm.mtp.block != glm.layer(77)
    for id, billions in (("nemotron3-super-120b-a12b", 2.94), ("nemotron3-ultra-550b-a55b", 11.22)):
        spec = MODELS[id]
        assert spec.mtp is not None
        assert (spec.mtp.block.mixer, spec.mtp.block.ffn) == (spec.layer(7).mixer, spec.layer(8).ffn)
        assert count(spec).mtp == pytest.approx(billions * 1e9, rel=0.002)


@pytest.mark.parametrize("name", NAMES.read_text(encoding="utf-8").splitlines())
def test_truth_names_resolve(name: str) -> None:
    assert (find_name(name) is None) == (name in UNRESOLVED)


@pytest.mark.skipif(not TRUTH.is_dir(), reason="the truth tables are not beside this repository")
def test_names_file_covers_the_truth_tables() -> None:
    columns = {"training.csv": "model_name", "training_a100_single_node.csv": "model_name", "inference.csv": "model"}
    found: set[str] = set()
    for file, column in columns.items():
        with (TRUTH / file).open(encoding="utf-8", newline="") as stream:
            found |= {row[column] for row in csv.DictReader(stream)}
    assert found == set(NAMES.read_text(encoding="utf-8").splitlines())


@pytest.mark.skipif(not TRUTH.is_dir(), reason="the truth tables are not beside this repository")
def test_dimensions_agree_with_the_truth_tables() -> None:
    """Rows give layers, width and vocabulary; most agree with the entry their name means, and the rest are known."""
    known = {
        ("GPT-1.7B", "megatron-core"),  # another model of that size
        ("Llama3.1-405B", "nemo"),  # benchmarked with another tokenizer in some rows
    }
    odd: set[tuple[str, str]] = set()
    with (TRUTH / "training.csv").open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            found = find_name(row["model_name"])
            if found is None or not row["layers"]:
                continue
            spec = model({"base": found[0], **found[1]})
            same = (spec.layers, spec.hidden) == (int(row["layers"]), int(row["hidden"]))
            vocab = int(row["vocab"] or spec.vocab)
            if not same or not 0.94 < vocab / spec.vocab < 1.28:  # padding, and GPT-3 rebuilt with 64000 tokens
                odd.add((row["model_name"], row["x_engine"]))
    assert odd <= known


def test_cold_load_of_one_model_reads_one_file() -> None:
    code = (
        "import sys, pathlib\n"
        "opened = []\n"
        "sys.addaudithook(lambda name, args: opened.append(str(args[0])) if name == 'open' else None)\n"
        "from ridgeline.models.load import model\n"
        "model('llama3-8b')\n"
        "print([pathlib.Path(path).stem for path in opened if path.endswith('.toml')])\n"
        "print([name for name in sys.modules if name.startswith('ridgeline.models.hf')])\n"
    )
    path = str(ROOT / "src")
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": path}
    )
    assert run.stdout.splitlines() == ["['llama3-8b']", "[]"]


def test_mapping_with_a_base() -> None:
    cut = model({"base": "llama3.1-405b", "layers": 8, "mlp": {"hidden": 1024}})
    assert (cut.layers, cut.hidden, cut.id) == (8, 16384, "llama3.1-405b with layers=8, mlp")
    assert cut.blocks[0].mixer == MODELS["llama3.1-405b"].blocks[0].mixer
    assert model({"base": "Llama-3.1-405B"}) is MODELS["llama3.1-405b"]
    assert model({"base": "Llama-3.1-405B truncated to 8 layers", "vocab": 32000}).layers == 8
    other = model({"base": "llama3-8b", "attention": {"kind": "mamba2", "heads": 128, "head_dim": 64, "state": 128}})
    assert other.blocks[0].mixer is not None
    assert other.blocks[0].mixer.kind == "mamba2"


def test_mapping_without_a_base_and_with_a_wrong_one() -> None:
    table = {"hidden": 64, "layers": 2, "vocab": 100, "attention": {"heads": 4}, "mlp": {"hidden": 256}}
    assert model(table).layers == 2
    with pytest.raises(UnknownId, match="llama3-8b"):
        model({"base": "lama3-8b"})
    with pytest.raises(UnknownId):
        model({"base": "x" * 5000})
    with pytest.raises(InputError, match="a catalog id"):
        model({"base": 3})
    with pytest.raises(InputError, match="laiers"):
        model({"base": "llama3-8b", "laiers": 3})


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('base = "llama3-8b"\nlayers = 3\n', encoding="utf-8")
    assert (model(file).layers, model(str(file)).id) == (3, "mine")
    file.write_text('base = "llama3-8b"\nlayers = "three"\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"mine\.toml:2 layers"):
        model(file)
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,'
        ' "intermediate_size": 128, "vocab_size": 100}',
        encoding="utf-8",
    )
    assert model(tmp_path).layers == 2
    assert model(tmp_path / "config.json").hidden == 64


@pytest.mark.parametrize(
    "ref", ["lama3-8b", "no/such/config.json", "", "a\0b", "x" * 5000, "../llama3-8b\n", Path("nowhere")]
)
def test_unknown_reference_says_both_things(ref: str | Path) -> None:
    with pytest.raises(UnknownId, match="no file or folder"):
        model(ref)


def test_a_base_that_leads_back_or_outside_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop.toml").write_text('base = "loop.toml"\nlayers = 3\n')
    with pytest.raises(InputError, match="lead to an end"):
        model(tmp_path / "loop.toml")
    (tmp_path / "loop.toml").write_text('base = "../other.toml"\n')
    with pytest.raises(InputError, match="own folder"):
        model(tmp_path / "loop.toml")


def test_decorated_name_loads_what_it_changes() -> None:
    assert model("Llama3.1-405B truncated to 8 layers (proxy)").layers == 8
    assert model("meta-llama/Llama-3.1-8B-Instruct") is MODELS["llama3.1-8b"]
