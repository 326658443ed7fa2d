"""The fake device, what is captured of it, and the verb."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
from command import run

torch = pytest.importorskip("torch")

from ridgeline.runtime.bringup import fake_device  # noqa: E402
from ridgeline.runtime.bringup.capture import (  # noqa: E402
    Modules,
    Watch,
    probe,
)
from ridgeline.runtime.bringup.op_suite import suite_calls  # noqa: E402

FAULTS = '''
import torch

def fault_tf32(op, args, kwargs, result):
    """Products of fp32 lose thirteen bits."""
    if op == "aten.mm.default" and result.dtype == torch.float32:
        cut = [(x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32) for x in args]
        return torch.mm(*cut)

def fault_rows_that_meet(op, args, kwargs, result):
    """The last of the rows that meet wins."""
    if op == "aten.embedding_dense_backward.default":
        return torch.zeros_like(result).index_put((args[1].flatten(),), args[0].flatten(0, -2).to(result.dtype))

def fault_never(op, args, kwargs, result):
    return None
'''


def test_a_layer_trains_on_the_device_and_places_are_known() -> None:
    fake_device.register()
    torch.manual_seed(0)
    host = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.SiLU(), torch.nn.Linear(40, 8))
    x = torch.randn(6, 24)
    (expected,) = torch.autograd.grad(host(x).square().sum(), host[0].weight)
    module = host.to("ridge")
    modules = Modules()
    watch = Watch(modules)
    stop = modules.follow(module)
    with watch:
        module(x.to("ridge")).square().sum().backward()
    stop()
    assert torch.equal(module[0].weight.grad.cpu(), expected)
    assert watch.wrong == []
    places = {(one.op, one.place.module, one.place.phase) for one in watch.calls.values()}
    assert ("aten.silu.default", "1", "forward") in places
    assert ("aten.silu_backward.default", "1", "backward") in places


def test_an_op_in_place_is_altered_in_place() -> None:
    fake_device.register()
    seen = []

    def doubled(op: str, args: tuple[object, ...], kwargs: dict[str, object], result: object) -> object:
        if op != "aten.add_.Tensor":
            return None
        seen.append(args[0].clone())
        return result * 2

    x = torch.ones(3).to("ridge")
    with fake_device.alter_results(doubled):
        x.add_(1.0)
    assert x.cpu().tolist() == [4.0, 4.0, 4.0]
    assert seen[0].tolist() == [1.0, 1.0, 1.0]


def test_the_standing_set_is_right_on_the_fake_device() -> None:
    fake_device.register()
    for call in islice(suite_calls(seed=3), 0, None, 5):
        watch = probe(call, "ridge")
        assert not watch.wrong, (str(call.op), call.why, watch.wrong[0].verdict)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=200,
    )
    config.save_pretrained(tmp_path)
    return tmp_path / "config.json"


def test_the_verb(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "faults.py"
    file.write_text(FAULTS, encoding="utf-8")
    asked = "bringup", str(small), "--device", "ridge", "--faults", str(file), "--json"
    code, out, _ = run(capsys, monkeypatch, *asked, "--fault", "tf32")
    told = json.loads(out)
    assert code == 1
    assert told["verdict"] == "wrong"
    assert {one["op"] for one in told["findings"]} == {"aten.mm.default"}
    assert told["findings"][0]["module"] == "layers.0.mixer.query"
    assert told["fired"] > 0
    assert "1 of 4 layers" in told["coverage"]["left_out"][0]


@pytest.mark.slow
def test_every_fault_of_a_file(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "faults.py"
    file.write_text(FAULTS, encoding="utf-8")
    code, out, _ = run(capsys, monkeypatch, "bringup", str(small), "--device", "ridge", "--faults", str(file), "--json")
    first, second, third = json.loads(out)["faults"]
    assert code == 1
    assert {one["op"] for one in first["findings"]} == {"aten.mm.default"}
    assert {one["op"] for one in second["findings"]} == {"aten.embedding_dense_backward.default"}
    assert third["findings"] == []
    assert json.loads(out)["silent"] == ["fault_never"]


def test_refusals(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty.py").write_text("x = 1\n", encoding="utf-8")
    for args, said in (
        (["--device", "xpu"], "--device"),
        (["--device", "ridge", "--faults", str(tmp_path / "none.py")], "--faults"),
        (["--device", "ridge", "--faults", str(tmp_path / "empty.py")], "fault_"),
    ):
        code, _, err = run(capsys, monkeypatch, "bringup", str(small), *args)
        assert code == 2
        assert said in err
    monkeypatch.setattr("ridgeline.runtime.bringup.target.BYTES_PER_PARAMETER", 1 << 40)
    for model, said in (("mamba2-2.7b", "mamba2"), (str(small), "memory can hold")):
        code, _, err = run(capsys, monkeypatch, "bringup", model, "--device", "ridge")
        assert code == 2
        assert said in err
