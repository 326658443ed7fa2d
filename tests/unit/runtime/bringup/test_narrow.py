"""Products in 8 bits: right units pass, also one that keeps fourteen bits; wrong scales and sums do not."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ridgeline.runtime.bringup import fake_device  # noqa: E402
from ridgeline.runtime.bringup.arithmetic import PLAIN, Unit  # noqa: E402
from ridgeline.runtime.bringup.capture import probe  # noqa: E402
from ridgeline.runtime.bringup.fake_device import Lacks  # noqa: E402
from ridgeline.runtime.bringup.inventory import unsupported_formats  # noqa: E402
from ridgeline.runtime.bringup.judge import judge  # noqa: E402
from ridgeline.runtime.bringup.op_calls import Numbers, OpCall, scaled_products  # noqa: E402

OP = "aten._scaled_mm.default"
CALLS = tuple(scaled_products(Numbers(torch.bfloat16)))
TENSOR_CORE = Unit(cuts_off=True)


def statistics(device: str, calls: tuple[OpCall, ...] = CALLS) -> dict[str, str]:
    found = {}
    for call in calls:
        watch = probe(call, device)
        assert watch.calls, call.why
        if watch.wrong:
            found[call.why] = watch.wrong[0].verdict.statistic
    return found


def test_the_calls_are_as_a_tensor_core_wants_them() -> None:
    assert not list(scaled_products(Numbers(torch.float32)))
    formats = {(call.args[0].dtype, call.args[1].dtype) for call in CALLS}
    assert {(torch.float8_e4m3fn, torch.float8_e4m3fn), (torch.float8_e4m3fn, torch.float8_e5m2)} <= formats
    for call in CALLS:
        a, b = call.args[:2]
        assert a.is_contiguous(), call.why
        assert b.stride(0) == 1, call.why
        assert a.shape[1] % 16 == b.shape[1] % 16 == 0, call.why
    assert any(call.args[0].shape[1] % 32 for call in CALLS)
    assert any(call.args[2].dim() for call in CALLS)


def test_the_host_and_the_fake_device_are_right() -> None:
    assert statistics("cpu") == {}
    assert statistics("ridge") == {}
    assert "float8_e4m3fn" not in unsupported_formats("ridge")


def product(args: Any, dtype: Any = torch.float32) -> Any:
    a, b = args[0].float(), args[1].float()
    sums = torch.zeros(a.shape[0], b.shape[1], dtype=dtype)
    for k in range(0, a.shape[1], 32):
        sums = sums + (a[:, k : k + 32] @ b[k : k + 32]).to(dtype)
    bias = args[4] if len(args) > 4 and args[4] is not None else 0.0
    return (sums.float() * args[2] * args[3] + bias).bfloat16()


FAULTS = {
    "a scale of the other e4m3": lambda args: (product(args).float() * 448 / 240).bfloat16(),
    "sums of 16 bits": lambda args: product(args, torch.bfloat16),
    "a tail of 16 left out": lambda args: product(
        (args[0][:, : args[0].shape[1] // 32 * 32], args[1][: args[0].shape[1] // 32 * 32], *args[2:])
    ),
    "the first row's scale for all": lambda args: product(
        (args[0], args[1], args[2].flatten()[:1].view(-1, 1) if args[2].dim() else args[2], *args[3:])
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_caught(name: str) -> None:
    with fake_device.alter_results(lambda op, args, kwargs, result: FAULTS[name](args) if op == OP else None):
        found = statistics("ridge")
    expected = {
        "a scale of the other e4m3": len(CALLS) - 1,  # all but the sums that cancel
        "sums of 16 bits": len(CALLS),
        "a tail of 16 left out": 13,
        "the first row's scale for all": 2,
    }
    assert len(found) == expected[name]


def tensor_core(call: OpCall, promoted: int) -> Any:
    """Thirty-two products aligned to the largest of them or the sum, thirteen bits behind its first kept."""
    a, b = call.args[0].double(), call.args[1].double()
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
    held = total.clone()
    for k in range(0, a.shape[1], 32):
        terms = a[:, k : k + 32, None] * b[None, k : k + 32, :]
        largest = torch.maximum(terms.abs().amax(1), held.abs())
        unit = torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent - 14)
        held = (held / unit).trunc() * unit + ((terms / unit[:, None]).trunc() * unit[:, None]).sum(1)
        if promoted and (k + 32) % promoted == 0:
            total, held = (total + held).float().double(), torch.zeros_like(held)
    bias = call.kwargs.get("bias")
    y = (total + held) * call.args[2].double() * call.args[3].double()
    return (y if bias is None else y + bias.double()).bfloat16()


def test_fourteen_bits_are_right_where_the_unit_is_known_to_cut_off() -> None:
    plain = 0
    for call in CALLS:
        fast = bool(call.kwargs.get("use_fast_accum"))
        y = tensor_core(call, 0 if fast else 128)
        assert judge(call.op, call.args, call.kwargs, [y], unit=TENSOR_CORE).right, call.why
        plain += not judge(call.op, call.args, call.kwargs, [y], unit=PLAIN).right
    assert plain > 3
    (long,) = [call for call in CALLS if call.why == "e4m3 x e4m3, 32 x 2064 x 64"]
    named = {**long.kwargs, "use_fast_accum": True}
    assert judge(long.op, long.args, named, [tensor_core(long, 0)], unit=TENSOR_CORE).right
    assert not judge(long.op, long.args, long.kwargs, [product(long.args, torch.bfloat16)], unit=TENSOR_CORE).right


def test_a_device_without_them_lacks_a_format_and_is_not_wrong() -> None:
    def refuses(op: str, args: Any, kwargs: Any, result: Any) -> None:
        if op == OP:
            raise RuntimeError("torch._scaled_mm is only supported on newer devices")

    with fake_device.alter_results(refuses):
        assert statistics("ridge", CALLS[:2]) == {}
        assert unsupported_formats("ridge")["float8_e4m3fn"] == ("multiply",)
    with fake_device.lacking(Lacks(missing=frozenset({OP}))):
        assert probe(CALLS[0], "ridge").missing == {OP: 1}
