"""What a step asks of a device, what the device lacks, how fast it is; devices that are not there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command import run

torch = pytest.importorskip("torch")

from rich.console import Console  # noqa: E402

from ridgeline.core.encode import to_json  # noqa: E402
from ridgeline.core.errors import InputError  # noqa: E402
from ridgeline.hardware.load import chip  # noqa: E402
from ridgeline.report.bringup import draw_bringup  # noqa: E402
from ridgeline.report.bringup_html import bringup_page  # noqa: E402
from ridgeline.runtime.bringup import devices, fake_device  # noqa: E402
from ridgeline.runtime.bringup.capture import Modules, Watch  # noqa: E402
from ridgeline.runtime.bringup.devices import open_device  # noqa: E402
from ridgeline.runtime.bringup.findings import Rates, rates_of  # noqa: E402
from ridgeline.runtime.bringup.inventory import (  # noqa: E402
    OpRecorder,
    Timer,
    call_kernel,
    collect_warnings,
    decomposed_ops,
    inventory_of,
    seconds_at_best,
    speed_of,
    unsupported_formats,
)
from ridgeline.runtime.bringup.supervise import bringup  # noqa: E402

A = torch.ops.aten


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 24), torch.nn.Linear(24, 8)

    def forward(self, x: object) -> object:
        return self.second(torch.nn.functional.silu(self.first(x)))


def trained(mode: object, modules: Modules, device: str) -> None:
    torch.manual_seed(0)
    module = Small().to(device)
    optimizer = torch.optim.AdamW(module.parameters(), foreach=False)
    stop = modules.follow(module)
    with mode:
        y = module(torch.ones(4, 16).to(device))
        modules.phase = "loss"
        loss = y.square().mean()
        loss.backward()
        modules.phase = "optimizer"
        optimizer.step()
        loss.item()
    stop()


def test_private_parts_of_torch_are_there() -> None:
    parts = (
        "_dispatch_key_for_device", "_dispatch_has_kernel", "_dispatch_has_kernel_for_dispatch_key",
        "_dispatch_has_backend_fallback", "_dispatch_key_parse", "_current_autograd_node", "_current_graph_task_id",
        "_get_privateuse1_backend_name",
    )  # fmt: skip
    assert [name for name in parts if not hasattr(torch._C, name)] == []
    assert hasattr(torch.autograd, "_get_sequence_nr")
    assert devices.dispatch_key("cuda") == "CUDA"
    assert devices.kernel_of("aten.mm.default", "CPU") == "own"
    assert devices.kernel_of("aten.embedding.default", "CPU") == "composite"
    assert devices.kernel_of("aten.mm.default", "Vulkan") in ("none", "fallback")


def test_the_inventory_of_a_step() -> None:
    fake_device.register()
    modules = Modules()
    watch = Watch(modules, None, {"first": 5})
    lacks = fake_device.Lacks(missing=frozenset({"aten.silu.default"}), fallback=frozenset({"aten.mean.default"}))
    with fake_device.lacking(lacks), collect_warnings() as messages:
        trained(watch, modules, "ridge")
    held = inventory_of(watch, "ridge", messages)
    assert [(one.op, one.module, one.phase) for one in held.missing] == [("aten.silu.default", "", "forward")]
    assert [(one.op, one.module, one.phase) for one in held.fallback] == [("aten.mean.default", "loss", "loss")]
    assert [one.op for one in held.synchronising] == ["aten._local_scalar_dense.default"]
    product = next(row for row in held.rows if row.op == "aten.addmm.default" and row.module == "first")
    assert (product.calls, product.model_calls) == (1, 5)
    assert product.shapes == ((24,), (4, 16), (16, 24))
    assert product.strides[2] == (1, 16)
    assert {row.module for row in held.rows if row.phase == "optimizer"} == {"first", "second"}
    assert set(held.phases) == {"forward", "loss", "backward", "optimizer"}
    assert watch.wrong == []


def test_an_op_that_is_several_on_the_device_is_named() -> None:
    fake_device.register()
    q = torch.randn(1, 2, 8, 16)
    watch, host = Watch(Modules()), OpRecorder(Modules())
    for mode, device in ((watch, "ridge"), (host, "cpu")):
        there = q.to(device)
        with mode:
            torch.nn.functional.scaled_dot_product_attention(there, there, there, is_causal=True)
    (found,) = decomposed_ops(inventory_of(watch, "ridge").rows, host.ops)
    assert "scaled_dot_product" in found.op
    assert "where.self" in found.detail
    assert unsupported_formats("cpu") == {}


def test_a_product_has_a_roof() -> None:
    a, b = torch.ones(512, 1024, dtype=torch.bfloat16), torch.ones(1024, 256, dtype=torch.bfloat16)
    work = call_kernel(A.mm.default, (a, b), {}, a @ b)
    assert work.flops == 2 * 512 * 1024 * 256
    assert work.bytes == 2 * (512 * 1024 + 1024 * 256 + 512 * 256)
    seconds, bound = seconds_at_best(work, rates_of(chip("h200-sxm")))
    assert bound == "memory"
    assert seconds == pytest.approx(work.bytes / 4.8e12)
    assert seconds_at_best(work, Rates(name="x", bytes_per_s=1.0)) is None
    causal = (torch.ones(2, 4, 64, 32),) * 3
    work = call_kernel(A._scaled_dot_product_flash_attention.default, (*causal, 0.0, True), {}, causal[0])
    assert work.flops == 2 * 4 * 64 * 64 * 4 * 32 / 2


def test_slow_and_impossible_ops_are_flagged() -> None:
    x = torch.randn(256, 256)
    timer = Timer(Modules(), "cpu")
    with timer:
        torch.mm(x, x)
    patient = Rates(name="slow", flops_per_s={"fp32": 1e3}, bytes_per_s=1e3)
    hasty = Rates(name="fast", flops_per_s={"fp32": 1e18}, bytes_per_s=1e18)
    assert [one.flag for one in speed_of(timer, "cpu", patient, (1, 1), "fp32").ops] == ["impossible"]
    (one,) = speed_of(timer, "cpu", hasty, (1, 1), "fp32").ops
    assert one.flag == ("" if one.bound == "launch" else "slow")
    assert one.share < 0.01
    cached = Rates(name="slow", flops_per_s={"fp32": 1e18}, bytes_per_s=1e3, cache_bytes=1e9)
    assert [one.flag for one in speed_of(timer, "cpu", cached, (1, 1), "fp32").ops] == [""]
    (one,) = speed_of(timer, "cpu", None, (1, 1), "fp32").ops
    assert (one.share, one.flag) == (None, "")


def test_launch_bound_ops_in_a_row_are_a_stretch() -> None:
    x = torch.ones(1)
    timer = Timer(Modules(), "cpu")
    with timer:
        for _ in range(5):
            x = x + x
    speed = speed_of(timer, "cpu", Rates(name="x", bytes_per_s=1e12), (1, 1), "fp32")
    assert [one.bound for one in speed.ops] == ["launch"]
    assert [(one.ops, one.phase) for one in speed.stretches] == [(5, "forward")]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("npu", "torch_npu"),
        ("musa", "torch_musa"),
        ("hpu", "habana"),
        ("xla", "torch_xla"),
        ("xpu", "Intel"),
        ("mps", "Apple"),
        ("cudaa", "did you mean 'cuda'?"),
        ("tpu", "did you mean 'xla'?"),
        ("nn", "torch knows"),
        ("cpu:3", "1 device"),
        ("ridge:1", "ridge:0"),
        ("cpu; rm", "a torch device such as"),
        ("", "a torch device such as"),
    ],
)
def test_devices_that_are_not_there(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said.replace("?", r"\?")):
        open_device(name)


CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 60,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "faults.py").write_text('MISSING = ["aten.silu.default"]\nFALLBACK = ["aten.cos.default"]\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_report_as_json_page_and_screen(asked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = bringup(
        "config.json",
        "ridge",
        faults="faults.py",
        rates=rates_of(chip("h200-sxm")),
        only=("steps", "inventory", "speed"),
    )
    sheet = to_json(found)
    told = json.loads(json.dumps(sheet, allow_nan=False))
    held = told["inventory"]
    assert {(one["op"], one["module"], one["statistic"]) for one in told["findings"]} == {
        ("aten.silu.default", "layers.0.ffn", "missing")
    }
    assert [one["op"] for one in held["missing"]] == ["aten.silu.default"]
    assert [one["op"] for one in held["fallback"]] == ["aten.cos.default"]
    assert any("scaled_dot_product" in one["op"] for one in held["decomposed"])
    assert {"forward", "loss", "backward", "optimizer"} <= set(held["phases"])
    product = next(row for row in held["rows"] if row["module"] == "layers.0.mixer.query" and row["phase"] == "forward")
    assert product["model_calls"] == 3 * product["calls"]
    assert told["speed"]["chip"] == "h200-sxm"
    assert told["speed"]["fallback"] == ["aten.cos.default"]
    assert told["environment"]["torch"] == torch.__version__
    page = bringup_page(replace(found, model="<b>\x1b[31m"))
    assert "aten.silu.default" in page
    assert "<script" not in page
    assert "<b>\x1b" not in page
    draw_bringup(found, Console(width=120, force_terminal=False))
    out = capsys.readouterr().out
    assert "1 is missing on the device" in out
    assert "launch-bound stretches" in out


@pytest.mark.slow
def test_the_verb_saves_a_report_that_diff_reads(
    asked: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "bringup", "config.json", "--device", "ridge", "--faults", "faults.py", "--chip", "h200-sxm"
    code, out, err = run(capsys, monkeypatch, *words, "-o", "saved.json", "--html", "page.html", "--json")
    assert code == 1, err
    assert json.loads((asked / "saved.json").read_text()) == json.loads(out)
    assert "aten.silu.default" in (asked / "page.html").read_text()
    code, out, _ = run(capsys, monkeypatch, "diff", "saved.json", "saved.json")
    assert code == 0
    assert "wrong  ->  wrong" in out
