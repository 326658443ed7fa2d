"""The corpus of faults and of right implementations, the fingerprint, and the personalities of the fake device."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from bringup_corpus.frozen import FROZEN  # noqa: E402
from bringup_corpus.legitimate import VARIANTS  # noqa: E402
from bringup_corpus.replay import Replay, record_calls  # noqa: E402

from ridgeline.core.errors import InputError  # noqa: E402
from ridgeline.runtime.bringup import fake_device  # noqa: E402
from ridgeline.runtime.bringup.arithmetic import Unit  # noqa: E402
from ridgeline.runtime.bringup.capture import (  # noqa: E402
    Watch,
    collect,
    hard_variants,
    probe,
    there,
)
from ridgeline.runtime.bringup.devices import fingerprint, unit_of  # noqa: E402
from ridgeline.runtime.bringup.faults import CORPUS, FAULTS, PERSONALITIES, choose_faults, read_faults, split  # noqa: E402
from ridgeline.runtime.bringup.judge import judge  # noqa: E402
from ridgeline.runtime.bringup.op_calls import Numbers, OpCall, lists, rearrangements  # noqa: E402
from ridgeline.runtime.bringup.op_suite import losses, norms, products  # noqa: E402
from ridgeline.runtime.bringup.supervise import fault_names  # noqa: E402

A = torch.ops.aten
BUILT = (
    (products, torch.bfloat16), (products, torch.float32), (norms, torch.bfloat16), (losses, torch.float32),
    (rearrangements, torch.float32), (lists, torch.float32),
)  # fmt: skip


def called() -> None:
    for build, dtype in BUILT:
        for call in build(Numbers(dtype, 5)):
            args, kwargs = torch.utils._pytree.tree_map(lambda x: there(x, "ridge"), (call.args, call.kwargs))
            call.op(*args, **kwargs)


@pytest.fixture(scope="module")
def replay() -> Replay:
    fake_device.register()
    return Replay(record_calls(called))


def test_the_frozen_half_is_named_and_is_half() -> None:
    assert set(FROZEN) < set(FAULTS)
    assert len(FAULTS) >= 100
    assert abs(2 * len(FROZEN) - len(FAULTS)) <= 2
    assert len(VARIANTS) >= 200


@pytest.mark.parametrize("name", [
    "tf32_products", "split_k_bf16", "double_rounding", "product_store_cuts", "tail_of_k", "last_column", "one_element",
    "zero_skipped", "batched_strides", "bias_twice", "ignored_rows_count", "layer_norm_variance_bf16",
    "rms_norm_epsilon", "slice_start", "expand_once", "transpose_order", "cat_interleaves", "foreach_last", "triangle",
])  # fmt: skip
def test_a_fault_fires_and_is_caught_at_its_op(replay: Replay, name: str) -> None:
    answers = list(replay.answers(FAULTS[name]))
    assert answers, "the fault never fired"
    assert any(not one.verdict.right for one in answers)


@pytest.mark.parametrize("name", [
    "mm: 7 parts", "mm: terms", "mm: pairwise", "bmm: backwards", "addmm: product stored first", "mm: in 64 bits",
    "native_layer_norm: by blocks", "_fused_rms_norm: root and divide", "_fused_rms_norm_backward: in 32 bits",
    "_foreach_addcdiv_: in 64 bits",
])  # fmt: skip
def test_another_right_implementation_is_right(replay: Replay, name: str) -> None:
    answers = list(replay.answers(VARIANTS[name]))
    assert answers
    assert [one.call.op for one in answers if not one.verdict.right] == []


def test_one_miss_of_a_small_tensor_is_chance_and_many_are_not() -> None:
    source = torch.Generator().manual_seed(0)
    a, b = (torch.randn(s, generator=source).bfloat16() for s in ((1, 128), (128, 256)))
    y = (a.double() @ b.double()).bfloat16()
    off = (y.view(torch.int16) + 1).view(torch.bfloat16)
    spacing = (off.double() - y.double()).abs()
    error = (a.double() @ b.double() - (y.double() + off.double()) / 2).abs()
    tie = int((error / spacing).argmin())
    one = y.clone()
    one[0, tie] = off[0, tie]
    assert judge(A.mm.default, (a, b), {}, [one]).right or float((error / spacing).min()) > 1e-4
    assert not judge(A.mm.default, (a, b), {}, [off]).right


def test_a_view_that_shows_other_numbers_is_wrong() -> None:
    fake_device.register()
    x = torch.arange(12.0).reshape(3, 4).to("ridge")

    def late(op: str, args: tuple[object, ...], kwargs: dict[str, object], result: object) -> object:
        return result.roll(1, 0) if op == "aten.slice.Tensor" else None

    for alter, expected in ((None, []), (late, ["aten.slice.Tensor"])):
        watch = Watch()
        with fake_device.alter_results(alter or (lambda *_: None)), watch:
            A.slice.Tensor(x, 1, 1, 3)
        assert [one.op for one in watch.wrong] == expected


def test_what_is_wrong_the_second_time_is_wrong_and_so_is_a_written_argument() -> None:
    fake_device.register()
    seen: list[str] = []

    def second(op: str, args: tuple[object, ...], kwargs: dict[str, object], result: object) -> object:
        seen.append(op)
        return result * 1.01 if op == "aten.mul.Tensor" and seen.count(op) == 2 else None

    def scribbles(op: str, args: tuple[object, ...], kwargs: dict[str, object], result: object) -> object:
        if op == "aten.mul.Tensor":
            args[0].add_(1.0)

    x = Numbers(torch.float32, 0).normal(8, 16)
    call = OpCall(op=A.mul.Tensor, args=(x, x))
    for alter, statistic in ((second, ("beyond", "power", "bias")), (scribbles, ("argument",))):
        with fake_device.alter_results(alter):
            wrong = probe(call, "ridge").wrong
        assert len(wrong) == 1
        assert wrong[0].verdict.statistic in statistic
    assert probe(call, "ridge").wrong == []


def test_dropout_and_random_numbers_keep_their_share() -> None:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(64, 64, generator=source)
    mask = torch.rand(64, 64, generator=source) > 0.1
    assert judge(A.native_dropout.default, (x, 0.1, True), {}, [x * mask / 0.9, mask]).right
    assert not judge(A.native_dropout.default, (x, 0.1, True), {}, [x * mask, mask]).right
    assert not judge(A.native_dropout.default, (x, 0.3, True), {}, [x * mask / 0.7, mask]).right
    assert judge(A.rand.default, ([64, 64],), {}, [torch.rand(64, 64, generator=source)]).right
    assert not judge(A.rand.default, ([64, 64],), {}, [torch.randn(64, 64, generator=source)]).right


def test_hard_variants_of_a_call() -> None:
    samples: dict[object, OpCall] = {}
    x = Numbers(torch.float32, 0).normal(4, 200)
    for _ in range(2):
        collect(samples, A.mul.Tensor, ((x, x), {}), "layers.0", "forward")
    collect(samples, A.embedding.default, ((x.mT, torch.tensor([3, 199, 7])), {}), "embedding", "forward")
    calls = list(hard_variants(samples))
    assert len(samples) == 2
    assert {one.why.partition(", ")[2] for one in calls if one.op is A.embedding.default} >= {"indices that meet"}
    assert all(size <= 96 for one in calls for x in one.args for size in x.shape)
    fake_device.register()
    assert not any(probe(one, "ridge").wrong for one in calls)


def test_the_fingerprint_tells_the_personalities_apart() -> None:
    fake_device.register()
    plain = fingerprint("ridge")
    assert plain.products["fp32"].factor_bits == 24
    assert plain.products["bf16"].sums == "nearest"
    assert plain.products["bf16"].bits > 18
    assert plain.cast == "nearest, ties to even"
    assert plain.fp8["e4m3fn"].startswith("448")
    assert plain.notes() == ()
    found = {}
    for name, alter in PERSONALITIES.items():
        with fake_device.alter_results(alter):
            found[name] = fingerprint("ridge")
    assert found["tf32"].products["fp32"].factor_bits == 11
    assert found["bf16-sums"].products["bf16"].bits < 12
    assert found["truncation"].cast == "toward zero"
    assert found["fnuz"].fp8["e4m3fn"].startswith("240")
    assert found["atomics"].notes() == ()
    assert unit_of(found["tf32"]) == Unit()
    assert unit_of(found["tf32"], frozenset(("tf32",))).factor_bits == 11


def test_an_accumulator_that_cuts_off_is_seen_and_allowed_for() -> None:
    fake_device.register()

    def cuts(op: str, args: tuple[object, ...], kwargs: dict[str, object], result: object) -> object:
        if op != "aten.mm.default" or result.dtype != torch.bfloat16:
            return None
        total = torch.zeros(result.shape, dtype=torch.float64)
        for k in range(0, args[0].shape[1], 16):
            total = total + args[0][:, k : k + 16].double() @ args[1][k : k + 16].double()
            near = total.float()
            over = near.double().abs() > total.abs()
            total = torch.where(over, (near.view(torch.int32) - 1).view(torch.float32), near).double()
        return total.to(result.dtype)

    with fake_device.alter_results(cuts):
        found = fingerprint("ridge")
    assert found.products["bf16"].sums == "toward zero"
    assert unit_of(found).cuts_off


def test_personalities_and_faults_by_name() -> None:
    assert split("ridge:tf32") == ("ridge", "tf32")
    assert split("cuda:1") == ("cuda:1", "")
    with pytest.raises(InputError, match="tf32"):
        split("ridge:tf33")
    faults = read_faults(CORPUS)
    assert list(choose_faults(faults, "fault_epsilon")) == ["epsilon"]
    with pytest.raises(InputError, match="did you mean 'epsilon'"):
        choose_faults(faults, "epsilonn")
    with pytest.raises(InputError, match="did you mean 'tf32_products' or 'tf32_cut_batched'"):
        fault_names(Path(CORPUS), "tf32")
