"""Dumps of mindstudio-probe 26.2.0, made by it on a CPU: read, replayed, judged; and hostile ones."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from command import run

torch = pytest.importorskip("torch")

from ridgeline.core.errors import InputError  # noqa: E402
from ridgeline.runtime.bringup.msprobe.dump import TensorNote, UnreadableError, read_dump, read_tensor  # noqa: E402
from ridgeline.runtime.bringup.msprobe.replay import bringup_msprobe  # noqa: E402

DUMPS = Path(__file__).parents[3] / "data" / "msprobe" / "dumps.zip"


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    with zipfile.ZipFile(DUMPS) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def spoil(folder: Path, name: str, factor: float) -> None:
    """One dumped tensor, off by a factor in its first row."""
    path = folder / "tensors" / "dump_tensor_data" / name
    values = torch.load(path, weights_only=True).detach().clone()
    values.view(-1, values.shape[-1])[0] *= factor
    torch.save(values, path)


def test_every_call_of_a_right_machine_is_right(dumps: Path) -> None:
    found = bringup_msprobe(dumps / "tensors")
    assert found.right, found.findings
    assert found.calls == found.replayed == 28
    assert found.unjudged == {}
    assert found.unreadable == {}
    plain = bringup_msprobe(dumps / "statistics")
    assert plain.right, plain.findings
    assert plain.replayed == 0
    assert plain.by_statistics >= plain.calls - 2


def test_a_wrong_call_is_named_with_module_and_phase(
    dumps: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(dumps, "Functional.silu.0.forward.output.0.pt", 1.0001)
    spoil(dumps, "Functional.layer_norm.0.backward.output.0.pt", 1.001)
    page = dumps / "page.html"
    asked = "bringup", "--msprobe", str(dumps / "tensors"), "--html", str(page), "--json"
    code, out, _ = run(capsys, monkeypatch, *asked)
    told = json.loads(out)
    assert code == 1
    assert {(one["op"], one["module"], one["phase"]) for one in told["findings"]} == {
        ("Functional.silu", "layers.0", "forward"),
        ("Functional.layer_norm", "layers.0.norm", "backward"),
    }
    assert "Functional.silu" in page.read_text(encoding="utf-8")


def test_statistics_that_cannot_be_are_wrong_and_the_line_of_code_is_named(dumps: Path) -> None:
    path = dumps / "statistics" / "dump.json"
    told = json.loads(path.read_text())
    told["data"]["Functional.softmax.0.forward"]["output"][0]["Mean"] *= 1.01
    told["data"]["Functional.silu.0.forward"]["output"][0]["Max"] *= 1.01
    told["data"]["Functional.linear.1.forward"]["output"][0]["Norm"] = "nan"
    path.write_text(json.dumps(told))
    found = bringup_msprobe(dumps / "statistics")
    assert {(one.op, one.statistic) for one in found.findings} == {
        ("Functional.softmax", "mean"),
        ("Functional.silu", "max"),
        ("Functional.linear", "nonfinite"),
    }
    assert found.findings[0].module.startswith("small_model.py:")


def test_a_dump_of_a_stranger_runs_nothing(dumps: Path) -> None:
    path = dumps / "tensors" / "dump.json"
    told = json.loads(path.read_text())
    linear = told["data"]["Functional.linear.0.forward"]
    linear["input_args"][0]["data_name"] = "../../../../etc/passwd"
    told["data"]["Torch.load.0.forward"] = linear
    told["data"]["Tensor.__reduce__.0.forward"] = linear
    told["data"]["Functional.gelu.0.forward"] = {"input_args": [{"type": "torch.Tensor", "shape": ["x", 1e400]}]}
    told["data"]["Functional.relu.0.forward"] = {"input_args": {"a": 1}, "output": 7}
    path.write_text(json.dumps(told))
    silu = dumps / "tensors" / "dump_tensor_data" / "Functional.silu.0.forward.input.0.pt"
    with zipfile.ZipFile(silu, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"cos\nsystem\n(S'true'\ntR.")
    found = bringup_msprobe(dumps / "tensors")
    assert found.right
    assert found.replayed == 28 - 4  # those that use the two files
    assert any("not as torch.save writes it" in why for why in found.unreadable)
    calls = {call.api: call for call in read_dump(dumps / "tensors").calls}
    assert calls["Torch.load"].args[0].file is None


def test_numpy_files_are_read_as_bytes(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    for name, array in {"c.npy": values, "f.npy": np.asfortranarray(values)}.items():
        np.save(tmp_path / name, array)
        note = TensorNote(dtype="float32", shape=(3, 4), file=tmp_path / name)
        assert torch.equal(read_tensor(note), torch.tensor(values))
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "s.npy").write_bytes((tmp_path / "c.npy").read_bytes()[:-1])
    for name, shape in (("o.npy", (1,)), ("s.npy", (3, 4)), ("c.npy", (4, 3))):
        with pytest.raises(UnreadableError):
            read_tensor(TensorNote(dtype="float32", shape=shape, file=tmp_path / name))


@pytest.mark.parametrize("text", ["[]", "{", "{}", '{"data": []}', "[" * 100_000])
def test_what_is_no_dump_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "dump.json").write_text(text)
    with pytest.raises(InputError):
        bringup_msprobe(tmp_path)
    with pytest.raises(InputError):
        bringup_msprobe(tmp_path / "none")
