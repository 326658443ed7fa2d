"""Scenarios: the canonical file, defaults, settings, and one test for each reason a plan is impossible."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ridgeline import Plan, Scenario, check, engine, model, read_scenario, scenario, schema, system
from ridgeline.core.errors import InputError
from ridgeline.plan.mesh import Mesh
from ridgeline.plan.optimizer import Optimizer
from ridgeline.plan.plan import Precision, Recompute, Schedule, Sharding, Switches, scenario_text
from ridgeline.plan.scenario_file import assemble, parse_value, self_contained
from ridgeline.plan.workload import Decode, Prefill, Train

EXAMPLE = Path(__file__).parents[3] / "examples" / "llama3-70b-64xh100.toml"
BASE: dict[str, Any] = {
    "model": "llama3-8b",
    "system": "16xh100-sxm",
    "workload": {"kind": "train", "seq": 8192, "global_batch": 64},
    "plan": {"tp": 2, "pp": 2, "dp": 4, "shard": "zero1"},
}
MOE = {**BASE, "model": "mixtral-8x7b"}


def paths(table: dict[str, Any], *settings: str) -> list[str]:
    _, problems = assemble(table, settings)
    return [problem.path for problem in problems]


def test_the_canonical_file() -> None:
    read = read_scenario(EXAMPLE)
    assert (read.model.id, read.system.chips) == ("llama3-70b", 64)
    assert read.plan.mesh == Mesh(pp=2, dp=4, tp=8)
    assert read.plan.schedule == Schedule(name="interleaved", chunks=5)
    assert read.plan.recompute == Recompute(kind="selective")
    assert isinstance(read.workload, Train)
    assert read.workload.optimizer == Optimizer()
    assert (read.microbatches, read.placement) == (128, (8,) * 10)
    assert read.engine.id == "megatron-core"
    assert check(read) == ()


def test_little_needs_to_be_written() -> None:
    small = scenario({"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"seq": 4096, "global_batch": 8}})
    assert small.plan.mesh.dp == 8
    assert any("dp = 8" in note for note in small.assumptions)
    assert any("precision = bf16" in note for note in small.assumptions)


def test_json_and_yaml_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(BASE))
    (tmp_path / "s.yaml").write_text(
        "model: llama3-8b\nsystem: 16xh100-sxm\nworkload: {kind: train, seq: 8192, global_batch: 64}\n"
        "plan: {tp: 2, pp: 2, dp: 4, shard: zero1}\n"
    )
    assert read_scenario(tmp_path / "s.json") == read_scenario(tmp_path / "s.yaml") == scenario(BASE)


def test_settings_reach_every_part() -> None:
    changed = scenario(
        BASE,
        [
            "plan.tp=4", "plan.dp=2", "model.layers=16", "chip.hbm.bandwidth=8 TB/s",
            "system.tier.infiniband.bandwidth=800 Gbit/s", "workload.optimizer.states=bf16",
            "plan.schedule=interleaved", "plan.schedule.chunks=4", "plan.precision=fp8",
            "plan.precision.gradients=bf16",
            "plan.overlap.tp=true", "plan.offload=[\"optimizer\"]",
        ],
    )  # fmt: skip
    assert changed.plan.mesh.tp == 4
    assert changed.model.layers == 16
    assert changed.system.chip.need("hbm.bandwidth").value == 8e12
    assert changed.system.tiers[1].need_bandwidth().value == 100e9
    assert isinstance(changed.workload, Train)
    assert changed.workload.optimizer.bytes_per_param == 2 + 2 + 4
    assert changed.plan.schedule == Schedule(name="interleaved", chunks=4)
    assert changed.plan.precision.compute.id == "fp8-e4m3"
    assert changed.plan.precision.weights.id == "bf16"
    assert changed.plan.precision.gradients is not None
    assert changed.plan.switches.overlap == {"tp": True}
    assert changed.plan.offload.optimizer == 1.0
    assert BASE["plan"]["tp"] == 2  # the given table is left as it was


@pytest.mark.parametrize(
    ("setting", "path"),
    [
        ("plan.tp", "--set"),
        ("=4", "--set"),
        ("plann.tp=4", "plann"),
        ("plan.tpp=4", "plan.tpp"),
        ("plan.tp=many", "plan.tp"),
        ("plan.tp=0", "plan.tp"),
        ("plan.tp=nan", "plan.tp"),
        ("workload.seq=-1", "workload.seq"),
        ("chip.hbm.bandwidth=8", "chip.hbm.bandwidth"),
        ("chip.hbm.bandwith=8 TB/s", "chip.hbm.bandwith"),
        ("model.layers=x", "model.layers"),
        ("model=nosuch", "model"),
        ("system=nosuch", "system"),
        ("plan.precision=fp9", "plan.precision.compute"),
        ("plan.offload.optimizer=2", "plan.offload.optimizer"),
        ("plan.overlap.tpp=true", "plan.overlap.tpp"),
        ("workload.kind=trian", "workload.kind"),
    ],
)
def test_wrong_settings_name_their_path(setting: str, path: str) -> None:
    assert path in paths(BASE, setting)


def test_a_string_below_another_key_is_not_swallowed() -> None:
    assert "workload.seq" in paths(BASE, "workload.seq.deep=3")


@pytest.mark.parametrize(
    ("table", "settings", "path"),
    [
        (BASE, ["plan.dp=3"], "plan.dp"),  # 2 x 3 x 2 = 12 of 16
        (BASE, ["plan.tp=3", "plan.dp=1"], "plan.tp"),  # 32 heads
        (BASE, ["plan.ep=2"], "plan.ep"),  # no experts
        (MOE, ["plan.ep=3"], "plan.ep"),  # 8 experts
        (MOE, ["plan.ep=8", "plan.etp=2"], "plan.ep"),  # 16 does not divide 2 x 4
        (MOE, ["plan.ep=16"], "plan.ep"),
        (BASE, ["plan.cp=2", "plan.dp=2", "workload.seq=8190"], "plan.cp"),
        (BASE, ["workload.seq=8191"], "plan.tp"),  # sequence parallelism splits 8191 tokens over 2
        (BASE, ["plan.cp=32", "plan.cp_kind=all-to-all"], "plan.cp"),  # 2 x 32 > 32 heads
        (BASE, ["workload.global_batch=66"], "plan.microbatch"),
        (BASE, ["plan.microbatch=3"], "plan.microbatch"),
        (BASE, ["plan.pp=64", "plan.tp=1", "plan.dp=1", "system=64xh100-sxm"], "plan.pp"),  # 32 layers
        (BASE, ["plan.placement=[16, 15]"], "plan.placement"),
        (BASE, ["plan.placement=[16, 8, 8]"], "plan.placement"),
        (BASE, ["plan.schedule=2f2b"], "plan.schedule.name"),
        (BASE, ["plan.schedule=interleaved", "workload.global_batch=60"], "plan.schedule"),  # 15 microbatches, 2 stages
        (BASE, ["plan.schedule.chunks=2"], "plan.schedule"),  # 1f1b has one chunk
        (BASE, ["plan.pp=1", "plan.dp=8", "plan.schedule=zbv"], "plan.schedule"),
        (BASE, ["plan.shard=none", "plan.shard_degree=2"], "plan.shard_degree"),
        (BASE, ["plan.shard_degree=3"], "plan.shard_degree"),
        (BASE, ["plan.precision=nvfp4"], "plan.precision"),  # Hopper has no 4-bit peak
        (BASE, ["plan.engine=megatorn"], "plan.engine"),
        (BASE, ["plan.recompute.blocks.7=full"], "plan.recompute.blocks.7"),
        (BASE, ["plan.recompute.layers=[4, 4, 4]"], "plan.recompute.layers"),  # two stages
        (BASE, ["plan.recompute.layers=[4, 17]"], "plan.recompute.layers[1]"),  # a stage holds 16
        (BASE, ["plan.recompute.layers=[4, -1]"], "plan.recompute.layers[1]"),
        (BASE, ["plan.recompute.layers=-1"], "plan.recompute.layers"),
        (BASE, ["workload.tokens_per_batch=8192"], "workload.global_batch"),  # both given
    ],
)  # fmt: skip
def test_every_rule_has_a_case(table: dict[str, Any], settings: list[str], path: str) -> None:
    assert path in paths(table, *settings)


@pytest.mark.parametrize(
    ("table", "settings"),
    [
        (BASE, []),
        (BASE, ["plan.tp=16", "plan.pp=1", "plan.dp=1"]),  # keys are replicated: 16 is a multiple of 8 key-value heads
        (BASE, ["plan.pp=16", "plan.tp=1", "plan.dp=1"]),  # 32 layers over 16 stages
        (BASE, ["model.layers=31"]),  # layers need not divide
        (BASE, ["plan.cp=2", "plan.dp=2", "plan.shard_degree=4"]),  # context ranks shard too
        (BASE, ["workload.global_batch=20", "plan.schedule=1f1b"]),
        (MOE, ["plan.ep=8"]),  # folded over tp x dp = 8
        (MOE, ["plan.ep=4", "plan.etp=2"]),
        (BASE, ["plan.precision=nvfp4", "chip.peak.fp4=4 PFLOP/s"]),
        (BASE, ["plan.schedule=dualpipe-v"]),
        (BASE, ["plan.recompute.layers=[4, 0]"]),
        (BASE, ["plan.cp=2", "plan.dp=2", "plan.cp_kind=all-to-all"]),  # 4 divides 32 heads
        (BASE, ["plan.recompute.layers=99"]),  # one number for all stages may be more than one holds
    ],
)
def test_what_is_not_required_is_accepted(table: dict[str, Any], settings: list[str]) -> None:
    assert paths(table, *settings) == []


def test_a_batch_that_does_not_divide_names_its_neighbours() -> None:
    (problem,) = assemble(BASE, ["workload.global_batch=66"])[1]
    assert problem.todo == "use a global batch of 64 or 68"  # dp 4 x microbatch 1


def test_what_is_missing_is_told_beside_what_is_wrong() -> None:
    found = assemble({"modle": "llama3-8b", "workload": {"seq": 8192, "global_batch": 8}, "plan": {"tpp": 1}})[1]
    assert [problem.path for problem in found] == ["modle", "model", "system", "plan.tpp"]


def test_a_published_name_is_no_path(tmp_path: Path) -> None:
    rest = {"system": "8xh100-sxm", "workload": {"seq": 8192, "global_batch": 8}}
    (tmp_path / "s.json").write_text(json.dumps({"model": "meta-llama/Llama-3.1-8B", **rest}))
    assert read_scenario(tmp_path / "s.json").model.id == "llama3.1-8b"


def test_an_impossible_plan_is_a_value() -> None:
    built = Scenario(
        model=model("llama3-8b"),
        system=system("8xh100-sxm"),
        workload=Train(seq=4096, global_batch=8),
        engine=engine("megatron-core"),
        plan=Plan(mesh=Mesh(tp=3, dp=2)),
    )
    reasons = check(built)
    assert {reason.path for reason in reasons} == {"plan.dp", "plan.tp"}
    assert all(reason.given and reason.expected for reason in reasons)
    assert check(replace(built, plan=Plan(mesh=Mesh(tp=4, dp=2)))) == ()


def test_all_problems_with_their_lines(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(
        'model = "llama3-8b"\nsystem = "16xh100-sxm"\nplann = 1\n[workload]\nseq = 8192\nglobal_batch = 65\n'
        "[plan]\ntp = 3\npp = 64\nmicrobach = 2\n"
    )
    with pytest.raises(InputError) as caught:
        read_scenario(tmp_path / "bad.toml")
    where = {problem.path: problem.where for problem in caught.value.problems}
    assert where["plann"] == "bad.toml:3"
    assert where["plan.microbach"] == "bad.toml:10"
    (tmp_path / "bad.toml").write_text(
        'model = "llama3-8b"\nsystem = "16xh100-sxm"\n[workload]\nseq = 8192\nglobal_batch = 65\n'
        "[plan]\ntp = 3\npp = 64\n"
    )
    with pytest.raises(InputError) as caught:
        read_scenario(tmp_path / "bad.toml")
    where = {problem.path: problem.where for problem in caught.value.problems}
    assert where["plan.tp"] == "bad.toml:7"
    assert where["plan.pp"] == "bad.toml:8"
    assert where["plan.dp"] == "bad.toml:6"  # not written: its table's line
    with pytest.raises(InputError) as caught:
        read_scenario(tmp_path / "bad.toml", ["plan.tp=5"])
    assert {problem.where for problem in caught.value.problems if problem.path == "plan.tp"} == {"--set"}


def test_paths_in_a_file_stay_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "secret.toml").write_text("hidden = 1\n")
    (tmp_path / "inner" / "own.toml").write_text(
        "hidden = 64\nlayers = 2\nvocab = 100\n[attention]\nheads = 4\n[mlp]\nhidden = 128\n"
    )
    text = 'model = "{}"\nsystem = "1xh100-sxm"\n[workload]\nseq = 128\nglobal_batch = 1\n'
    (tmp_path / "inner" / "s.toml").write_text(text.format("own.toml"))
    assert read_scenario(tmp_path / "inner" / "s.toml").model.hidden == 64
    for outside in ("../secret.toml", str(tmp_path / "secret.toml")):
        (tmp_path / "inner" / "s.toml").write_text(text.format(outside))
        with pytest.raises(InputError, match="inside the file's own folder"):
            read_scenario(tmp_path / "inner" / "s.toml")


@pytest.mark.parametrize("key", ["model", "system", "chip"])
def test_bases_in_a_file_stay_in_its_folder(tmp_path: Path, key: str) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "secret.toml").write_text("x = 1\n")
    rest = {"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"seq": 8192, "global_batch": 8}}
    (tmp_path / "inner" / "s.json").write_text(json.dumps(rest | {key: {"base": "../secret.toml"}}))
    with pytest.raises(InputError, match=rf"{key}\.base: got '../secret.toml', expected a path inside"):
        read_scenario(tmp_path / "inner" / "s.json")
    (tmp_path / "inner" / "near.toml").write_text('base = "h100-sxm"\n' if key == "chip" else f'base = "{rest[key]}"\n')
    (tmp_path / "inner" / "s.json").write_text(json.dumps(rest | {key: {"base": "near.toml"}}))
    assert read_scenario(tmp_path / "inner" / "s.json").system.chips == 8


@pytest.mark.parametrize("wrong", [3, 2.5, True, ["llama3-8b"]])
def test_a_model_or_a_system_that_is_no_name(wrong: object) -> None:
    rest = {"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"seq": 8192, "global_batch": 8}}
    for key in ("model", "system"):
        with pytest.raises(InputError, match=f"{key}: got "):
            scenario(rest | {key: wrong})


def test_a_table_of_dimensions() -> None:
    own = {"hidden": 64, "layers": 2, "vocab": 100, "attention": {"heads": 4}, "mlp": {"hidden": 128}}
    built = scenario({**BASE, "model": own, "system": "1xh100-sxm", "plan": {}})
    assert built.model.layer(0).mixer is not None
    assert "model.attention.heads" in paths({**BASE, "model": {**own, "attention": {"heads": 0}}})


def test_serving_workloads() -> None:
    prefill = scenario({**BASE, "workload": {"kind": "prefill", "seq": 8192, "batch": 8}, "plan": {"tp": 4}})
    assert prefill.workload == Prefill(seq=8192, batch=8)
    assert prefill.plan.mesh.dp == 4
    decode = scenario({**BASE, "workload": {"kind": "decode", "context": 8192, "batch": 8}, "plan": {"tp": 8}})
    assert isinstance(decode.workload, Decode)
    assert "plan.dp" in paths({**BASE, "workload": {"kind": "decode", "context": 10, "batch": 3}, "plan": {"tp": 8}})


def test_lora() -> None:
    work = {"seq": 4096, "global_batch": 64, "task": "lora", "lora": {"rank": 16, "targets": ["qkv"]}}
    built = scenario({**BASE, "workload": work})
    assert isinstance(built.workload, Train)
    assert built.workload.lora is not None
    assert "workload.lora" in paths({**BASE, "workload": {**work, "task": "pretrain"}})


def test_notes_on_the_engine_and_the_context() -> None:
    odd = scenario(BASE, ["plan.engine=maxtext", "plan.schedule=zbv", "workload.seq=16384"])
    assert any("maxtext is not known to support zbv" in note for note in odd.assumptions)
    assert any("beyond the 8192 tokens" in note for note in odd.assumptions)


@pytest.mark.parametrize(("pp", "shard", "noted"), [(2, "zero2", True), (1, "zero2", False), (2, "zero1", False)])
def test_sharding_that_does_not_go_with_stages_is_noted(pp: int, shard: str, noted: bool) -> None:
    built = scenario({**BASE, "plan": {"pp": pp, "shard": shard, "engine": "megatron-core"}})
    assert any(f"not known to support {shard} with stages" in note for note in built.assumptions) == noted


def test_derived_values() -> None:
    plan = Plan(
        mesh=Mesh(tp=4, dp=8, cp=2), sharding=Sharding(shard="zero3"), switches=Switches(sequence_parallel=False)
    )
    assert (plan.shard_degree, plan.sequence_parallel, plan.virtual_stages) == (16, False, 1)
    assert Plan(mesh=Mesh(tp=4)).sequence_parallel
    assert Plan(sharding=Sharding(shard="zero1", shard_degree=2), mesh=Mesh(dp=8)).shard_degree == 2
    assert Mesh(tp=2, dp=8, ep=4).edp == 4
    assert Mesh(tp=2, cp=3, dp=8, pp=5).stride("pp") == 48
    assert Precision().gradients is None
    assert Train(seq=1024, tokens_per_batch=4096).sequences == 4
    assert Optimizer(name="sgd", master=None).bytes_per_param == 0


def test_schema_accepts_what_is_read_and_refuses_what_is_not() -> None:
    import tomllib

    import jsonschema

    made = schema()
    jsonschema.Draft202012Validator.check_schema(made)
    with EXAMPLE.open("rb") as stream:
        jsonschema.validate(tomllib.load(stream), made)
    jsonschema.validate(BASE, made)
    for layers in (3, [3, 0]):
        jsonschema.validate({**BASE, "plan": {"recompute": {"kind": "full", "layers": layers}}}, made)
    negative = {**BASE, "plan": {"recompute": {"kind": "full", "layers": [3, -1]}}}
    for wrong in (
        negative,
        {**BASE, "plann": {}},
        {**BASE, "plan": {"tpp": 2}},
        {**BASE, "plan": {"tp": 0}},
        {"model": "x"},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, made)


@pytest.mark.parametrize(
    ("text", "value"), [("4", 4), ("8 TB/s", "8 TB/s"), ("1f1b", "1f1b"), ("true", True), ('"x"', "x"), ("", "")]
)
def test_values_of_settings(text: str, value: object) -> None:
    assert parse_value(text) == value


OWN_MODEL = "hidden = 64\nlayers = 2\nvocab = 100\n[attention]\nheads = 4\n[mlp]\nhidden = 128\n"
OWN_SYSTEM = """
chips = 2
node = 2
chip = "own-chip.toml"
[[tier]]
name = "wire"
topology = { kind = "ring" }
bandwidth = "1 GB/s"
"""
OWN_CHIP = 'name = "X"\nvendor = "me"\nsystem = ""\n[peak]\nbf16 = "1 PFLOP/s"\n[hbm]\nbandwidth = "1 TB/s"\n'


def test_settings_reach_into_named_files(tmp_path: Path) -> None:
    for name, text in (("own-model", OWN_MODEL), ("own-system", OWN_SYSTEM), ("own-chip", OWN_CHIP)):
        (tmp_path / f"{name}.toml").write_text(text)
    (tmp_path / "s.toml").write_text(
        'model = "own-model.toml"\nsystem = "own-system.toml"\n[workload]\nseq = 128\nglobal_batch = 2\n'
    )
    settings = ["model.layers=4", "system.tier.wire.bandwidth=2 GB/s", "chip.hbm.bandwidth=3 TB/s"]
    changed = read_scenario(tmp_path / "s.toml", settings)
    assert changed.model.layers == 4
    assert changed.system.tiers[0].need_bandwidth().value == 2e9
    assert changed.system.chip.need("hbm.bandwidth").value == 3e12
    assert changed.system.chip.peak["bf16"].value == 1e15
    assert "chip.hbm.bandwidth = 3 TB/s: given" in changed.assumptions


def test_a_self_contained_table_needs_no_files(tmp_path: Path) -> None:
    """A model over another model, and a system whose chip has a file of its own, are written out whole."""
    (tmp_path / "base.toml").write_text('base = "llama3-8b"\nlayers = 8\n')
    (tmp_path / "mine.toml").write_text('base = "base.toml"\nvocab = 64000\n')
    (tmp_path / "faster.toml").write_text('base = "h100-sxm"\n[hbm]\nbandwidth = "8 TB/s"\n')
    (tmp_path / "machine.toml").write_text('base = "16xh100-sxm"\nchip = "faster.toml"\n')
    table = {"model": "mine.toml", "system": "machine.toml", "workload": {"seq": 2048, "global_batch": 16}}
    whole = self_contained(table, tmp_path)
    assert not [key for key in ("model", "system") if isinstance(whole[key], str)]
    one, other = scenario(table, folder=tmp_path), scenario(whole)
    assert (one.system.chip, one.system.tiers) == (other.system.chip, other.system.tiers)
    assert other.system.chip.hbm.bandwidth.value == 8e12
    assert (other.model.layers, other.model.vocab) == (one.model.layers, one.model.vocab) == (8, 64000)
    named = {"model": "llama3-8b", "system": "8xh100-sxm"}
    assert self_contained(named, tmp_path) == named


def test_a_refused_path_can_be_replaced_from_outside(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "own.toml").write_text(OWN_MODEL)
    text = 'model = "../own.toml"\nsystem = "1xh100-sxm"\n[workload]\nseq = 128\nglobal_batch = 1\n'
    (tmp_path / "inner" / "s.toml").write_text(text)
    with pytest.raises(InputError, match="--set model=PATH"):
        read_scenario(tmp_path / "inner" / "s.toml")
    assert read_scenario(tmp_path / "inner" / "s.toml", [f"model={tmp_path / 'own.toml'}"]).model.hidden == 64


def test_short_forms_grow_into_tables() -> None:
    both = scenario(BASE, ["plan.offload=activations", "plan.offload.optimizer=0.5"]).plan.offload
    assert (both.activations, both.optimizer) == (1.0, 0.5)
    listed = scenario({**BASE, "plan": {**BASE["plan"], "offload": ["activations"]}}, ["plan.offload.optimizer=1"])
    assert (listed.plan.offload.activations, listed.plan.offload.optimizer) == (1.0, 1.0)
    regraded = scenario(BASE, ["chip.hbm.bandwidth.evidence=measured"]).system.chip.need("hbm.bandwidth")
    assert (regraded.value, regraded.evidence.label) == (3.35e12, "measured")


@pytest.mark.parametrize(
    ("precision", "weights", "cache"),
    [
        ("fp8", "fp8-e4m3", "bf16"),
        ({"name": "fp8", "kv": "fp8"}, "fp8-e4m3", "fp8-e4m3"),
        ({"name": "fp8", "weights": "bf16"}, "bf16", "bf16"),
        ({"compute": "fp8"}, "bf16", "bf16"),
        ("bf16", "bf16", "bf16"),
    ],
)
def test_a_narrow_name_means_weights_too_where_an_engine_serves(precision: object, weights: str, cache: str) -> None:
    table = {"model": "llama3-8b", "system": "1xh100-sxm", "workload": {"kind": "decode", "context": 512}}
    built = scenario({**table, "plan": {"precision": precision}})
    assert (built.plan.precision.weights.id, built.plan.precision.kv.id) == (weights, cache)
    again = scenario(tomllib.loads(scenario_text(table, built.plan)))
    assert again.plan.precision == built.plan.precision
    train = scenario(
        {**table, "workload": {"kind": "train", "seq": 512, "global_batch": 1}, "plan": {"precision": "fp8"}}
    )
    assert train.plan.precision.weights.id == "bf16"
