"""Models: laws with their supports, searches at equal predicted loss, mixed stacks, and answers that are known."""

from __future__ import annotations

import csv
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.design.architectures import exchange_ratio, flops_exchange, search_architectures
from ridgeline.design.blocks import LibraryBlock, block_seconds, choose_stack
from ridgeline.design.exchange_floor import exchange_floor
from ridgeline.design.laws import fit_law, law, laws, measured_best, quality_note, quality_rows
from ridgeline.design.study import read_study
from ridgeline.models.load import model
from ridgeline.sim.batches import MachineRows

ROOT = Path(__file__).parents[3]
STUDY = ROOT / "examples" / "design-next-model.toml"
POINTS = ROOT.parent / "shared" / "scaling_data" / "isoflops_openathena.csv"
needs_points = pytest.mark.skipif(not POINTS.exists(), reason="the published points are not part of a clone")
BUDGET = 5.76e23  # flops of Chinchilla


@pytest.mark.parametrize(
    ("name", "billions", "ratio"),
    [
        ("besiroglu2024", 72.25, 18.4),
        ("chinchilla2022-rounded", 32.19, 92.6),
        ("chinchilla2022-tex", 40.3, 59.1),
        ("muennighoff2023", 70.0, 19.6),
    ],
)
def test_optima_are_the_published_ones(name: str, billions: float, ratio: float) -> None:
    params, tokens = law(name).optimum(BUDGET)
    assert params / 1e9 == pytest.approx(billions, rel=0.002)
    assert tokens / params == pytest.approx(ratio, rel=0.003)


def test_the_optimum_is_flat_though_its_place_moves() -> None:
    """Models of half and twice the optimal size at the same flops are within 0.03 nats."""
    chosen = law("besiroglu2024")
    best, tokens = chosen.optimum(BUDGET)
    losses = [float(chosen.loss(best * factor, tokens / factor)) for factor in (0.5, 1.0, 2.0)]
    assert losses[1] < min(losses[0], losses[2]) < losses[1] + 0.03


def _points(source: str) -> list[np.ndarray]:
    with POINTS.open(encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["source"] == source and row["outlier"] != "True"]
    sets = sorted({row["dataset"] for row in rows})
    return [
        np.array(
            [[float(row[key]) for key in ("params", "tokens", "loss")] for row in rows if row["dataset"] == name]
        ).T
        for name in sets
    ]


@needs_points
def test_a_fit_finds_the_published_constants_within_their_errors() -> None:
    fit = fit_law(*_points("epochai_chinchilla")[0])
    published = law("besiroglu2024")
    assert published.errors is not None
    for name, error in published.errors.items():
        assert abs(fit.constants[name] - published.constants[name]) <= error, name


@needs_points
@pytest.mark.slow
@pytest.mark.parametrize("source", ["epochai_chinchilla", "marin_202603", "misfitting", "ml_scalefit"])
def test_points_that_no_fit_has_seen_are_predicted(source: str) -> None:
    for points in _points(source):
        seen, unseen = points[:, ::2], points[:, 1::2]
        constants = fit_law(*seen).constants
        expected = (
            constants["E"]
            + constants["A"] / unseen[0] ** constants["alpha"]
            + constants["B"] / unseen[1] ** constants["beta"]
        )
        assert np.median(np.abs(expected / unseen[2] - 1)) <= 0.0055


@needs_points
def test_losses_of_no_common_scale_are_refused() -> None:
    with pytest.raises(InputError, match="median residual"):
        fit_law(*_points("llama_3")[0])


def test_every_law_has_a_support_and_refuses_outside() -> None:
    for entry in laws().values():
        assert entry.params[0] < entry.params[1]
        assert entry.source
        assert [*entry.outside(entry.params[1] * 10, entry.tokens[0])]
    assert not [*law("besiroglu2024").outside(3e9, 6e10)]


def test_quality_without_a_row_is_unknown_and_never_nothing() -> None:
    assert "unknown" in quality_note("attention", "linear")
    assert "not worse" in quality_note("attention", "mla")


def test_the_best_measured_ratio_of_mlp_to_attention_is_below_llamas() -> None:
    for group, llama in (("1B", 4.8), ("3B", 3.0)):
        assert float(str(measured_best("mlp_attention_ratio", group)["value"])) < llama


def test_latent_attention_decodes_faster_than_grouped_at_long_context() -> None:
    def tpot(kind: str, context: int) -> float:
        table = {"base": "llama3-8b"} if kind == "gqa" else {"base": "llama3-8b", "attention": MLA}
        work = {"kind": "decode", "context": context, "batch": 8}
        made = {"model": table, "system": "1xh200-sxm", "workload": work, "plan": {"engine": "vllm"}}
        return float(MachineRows(ridgeline.scenario(made)).times({}).seconds[0])

    assert tpot("mla", 131072) < tpot("gqa", 131072)


MLA = {"kind": "mla", "heads": 32, "q_rank": 1536, "kv_rank": 512, "nope_dim": 128, "rope_dim": 64, "v_dim": 128}


def test_a_limit_of_nodes_of_at_most_four_is_the_one_that_was_measured() -> None:
    rows = [row for row in quality_rows() if row["choice"] == "node_limit"]
    assert min(int(str(row["value"])) for row in rows) <= 4
    experts = model("deepseek-v3").blocks[-1].ffn
    assert getattr(experts, "group_topk", 0) <= 4


def test_granularity_gains_less_and_less_by_the_law() -> None:
    """Between 8 and 12 the law gives less than a tenth of what the first doubling gave: there the gain ends."""
    chosen = law("krajewski2024-moe")
    losses = [float(chosen.loss(1e9, 5e10, granularity)) for granularity in (1, 2, 8, 12)]
    assert losses == sorted(losses, reverse=True)
    assert losses[2] - losses[3] < 0.2 * (losses[0] - losses[1])
    measured = next(row for row in quality_rows() if row["choice"] == "granularity")
    assert measured["value"] == [8, 12]


def test_candidates_have_the_same_loss_and_the_best_is_cheapest() -> None:
    settings = ["architectures.shape={layers=[24,28],hidden=[2560,3072],ffn_ratio=[2.667,4.0],kv_heads=[4]}"]
    answer = search_architectures(read_study(STUDY, settings))
    assert answer.best is not None
    chosen = law("besiroglu2024")
    for entry in answer.candidates:
        assert float(chosen.loss(entry.params, entry.tokens)) == pytest.approx(answer.target_loss, rel=1e-12)
        assert entry.total_usd >= answer.best.total_usd
    assert answer.basin.candidates >= 1
    assert any(entry.on_frontier for entry in answer.candidates)


def test_shapes_outside_the_law_or_that_do_not_divide_are_refused() -> None:
    settings = ["architectures.shape={layers=[28],hidden=[3072,3000],experts=[8],topk=[2]}"]
    answer = search_architectures(read_study(STUDY, settings))
    reasons = " ".join(entry.reason for entry in answer.refusals)
    assert not answer.candidates
    assert "whole number" in reasons
    assert "dense" in reasons


def test_where_dollars_are_flops_the_exchange_is_sardanas() -> None:
    """On the line of equal loss the least of 6 N D + 2 N S lies where e_N / e_D = 1 + S / (3 D)."""
    chosen, serving, target = law("besiroglu2024"), 2e12, 2.1
    sizes = np.geomspace(2e9, 1.5e10, 20001)
    tokens = chosen.tokens_for(target, sizes)
    best = int((6 * sizes * tokens + 2 * sizes * serving).argmin())
    known = chosen.constants
    ratio = (known["alpha"] * known["A"] / sizes[best] ** known["alpha"]) / (
        known["beta"] * known["B"] / tokens[best] ** known["beta"]
    )
    assert ratio == pytest.approx(flops_exchange(tokens[best], serving), rel=1e-3)
    answer = search_architectures(read_study(STUDY, ["architectures.shape={layers=[28],hidden=[3072]}"]))
    assert answer.best is not None
    assert exchange_ratio(chosen, answer.best) > 0


def test_an_integer_program_finds_what_trying_all_stacks_finds() -> None:
    library = [
        LibraryBlock(name="full", seconds=2.0, cache_bytes=8.0, penalty=0.0),
        LibraryBlock(name="window", seconds=1.2, cache_bytes=2.0, penalty=(0.02, 0.005, 0.01, 0.004, 0.02)),
        LibraryBlock(name="linear", seconds=0.9, cache_bytes=0.5, penalty=(0.05, 0.02, 0.02, 0.01, 0.05)),
    ]
    found = choose_stack(library, 5, most_penalty=0.03, most_cache=30.0)
    best = min(
        sum(library[kind].seconds for kind in stack)
        for stack in product(range(3), repeat=5)
        if sum(_penalty(library[kind], layer) for layer, kind in enumerate(stack)) <= 0.03
        and sum(library[kind].cache_bytes for kind in stack) <= 30
    )
    assert found.seconds == pytest.approx(best)
    with pytest.raises(InputError, match="unknown"):
        choose_stack([LibraryBlock(name="new", seconds=1.0, cache_bytes=1.0, penalty=None)], 2, 1.0)


def _penalty(block: LibraryBlock, layer: int) -> float:
    return block.penalty[layer] if isinstance(block.penalty, tuple) else float(block.penalty or 0.0)


def test_a_layer_is_priced_by_a_stack_of_it() -> None:
    scenario = ridgeline.read_scenario(ROOT / "examples" / "llama3-70b-decode-4xh100.toml")
    whole = ridgeline.predict(scenario).step_time_s
    each = block_seconds(scenario, scenario.model.blocks[0])
    assert 0.9 * whole < each * scenario.model.layers < whole


def test_the_floor_of_deepseeks_exchange_is_that_of_its_authors() -> None:
    deepseek = model("deepseek-v3")
    slow = exchange_floor(deepseek, 50e9, rounded_to=1000)
    assert slow.layer_s == pytest.approx(120.96e-6, rel=0.005)
    assert slow.tpot_s == pytest.approx(14.76e-3, rel=0.005)
    assert exchange_floor(deepseek, 900e9, rounded_to=1000).tpot_s == pytest.approx(0.82e-3, rel=0.005)
    with pytest.raises(InputError, match="experts"):
        exchange_floor(model("llama3-8b"), 50e9)
