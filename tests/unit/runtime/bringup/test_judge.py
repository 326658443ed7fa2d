"""Contracts and the judge: right implementations pass whatever their order, wrong ones do not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from ridgeline.runtime.bringup.judge import judge  # noqa: E402

A = torch.ops.aten


def normal(*shape: int, dtype: object = None, seed: int = 0) -> object:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype or torch.float32)


def tf32(x: object) -> object:
    return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_in_any_order_is_right(dtype: object) -> None:
    a, b = normal(48, 512, dtype=dtype), normal(512, 64, dtype=dtype, seed=1)
    wide = a.float(), b.float()
    ways = {
        "whole": (wide[0] @ wide[1]),
        "halves": wide[0][:, :256] @ wide[1][:256] + wide[0][:, 256:] @ wide[1][256:],
        "one by one": sum((wide[0][:, k : k + 1] * wide[1][k] for k in range(512)), torch.zeros(48, 64)),
        "backwards": wide[0].flip(1) @ wide[1].flip(0),
    }
    for name, y in ways.items():
        assert judge(A.mm.default, (a, b), {}, [y.to(dtype)]).right, name


def test_products_of_fewer_bits_are_wrong() -> None:
    a, b = normal(48, 512), normal(512, 64, seed=1)
    for name, y in {
        "tf32": tf32(a) @ tf32(b),
        "bf16": (a.bfloat16().float() @ b.bfloat16().float()),
        "one part in a thousand": (a @ b) * 1.001,
        "a tail left out": a[:, :511] @ b[:511],
    }.items():
        assert not judge(A.mm.default, (a, b), {}, [y]).right, name


def test_partial_sums_of_16_bits_are_wrong() -> None:
    a, b = normal(48, 512, dtype=torch.bfloat16), normal(512, 64, dtype=torch.bfloat16, seed=1)
    parts = [(a[:, k : k + 128].float() @ b[k : k + 128].float()).bfloat16() for k in range(0, 512, 128)]
    y = (parts[0] + parts[1]) + (parts[2] + parts[3])
    assert not judge(A.mm.default, (a, b), {}, [y]).right


def test_a_store_that_cuts_off_is_wrong_and_its_bias_is_seen() -> None:
    a, b = normal(64, 96), normal(64, 96, seed=1)
    exact = (a.double() + b.double()).float()
    cut = torch.nextafter(exact, torch.zeros_like(exact))
    cut = torch.where(exact.double().abs() > (a.double() + b.double()).abs(), cut, exact)
    found = judge(A.add.Tensor, (a, b), {}, [cut])
    assert judge(A.add.Tensor, (a, b), {}, [a + b]).right
    assert not found.right
    assert found.statistic in ("bias", "row", "column", "power")


def test_of_equal_values_any_may_be_named() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 2.0]])
    values = torch.tensor([[3.0, 3.0]])
    assert judge(A.topk.default, (x, 2), {}, [values, torch.tensor([[1, 2]])]).right
    assert judge(A.topk.default, (x, 2), {}, [values, torch.tensor([[2, 1]])]).right
    assert not judge(A.topk.default, (x, 2), {}, [values, torch.tensor([[1, 1]])]).right
    assert not judge(A.topk.default, (x, 2), {}, [values, torch.tensor([[1, 3]])]).right


def test_a_lost_nan_is_wrong() -> None:
    x = torch.tensor([1.0, float("nan"), -1.0])
    assert judge(A.exp.default, (x,), {}, [x.exp()]).right
    assert not judge(A.exp.default, (x,), {}, [x.exp().nan_to_num(0.0)]).right
