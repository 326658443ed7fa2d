"""Documents packed into files of tokens; sequences that no mesh, no shard and no resumption changes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[3]))

import torch
from command import run as command

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.runtime.train.data import batch_of, open_source
from ridgeline.runtime.train.layout import Axis, Layout


def write(folder: Path, *documents: list[int], name: str = "docs.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps({"tokens": one}) + "\n" for one in documents))
    return path


def test_documents_lie_end_to_end_with_their_ends_noted(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_bytes("né".encode())
    more = tmp_path / "more.jsonl"
    more.write_text('{"text": "ab"}\n\n{"tokens": [7, 300]}\n')
    made = ridgeline.pack([tmp_path / "note.txt", more], tmp_path / "all.u16", end=256)
    assert (made.documents, made.tokens, made.largest) == (3, 10, 300)
    stored = np.fromfile(tmp_path / "all.u16", "<u2").tolist()
    assert stored == [*"né".encode(), 256, *b"ab", 256, 7, 300, 256]
    assert np.fromfile(tmp_path / "all.u16.ends", "<u8").tolist() == [4, 7, 10]
    source = open_source(str(tmp_path / "all.u16"), 512, 0)
    assert [source.read(index, 4).tolist() for index in (0, 1, 2, 3)] == [
        stored[0:4], stored[3:7], stored[6:10], stored[0:4],  # targets are shared; the file begins anew
    ]  # fmt: skip
    with pytest.raises(InputError) as refused:
        open_source(str(tmp_path / "all.u16"), 300, 0).read(2, 4)
    assert "300" in str(refused.value)


def test_every_mesh_and_every_resumption_sees_the_same_sequences(tmp_path: Path) -> None:
    """dp 1, 2 and 4, with and without cp: the rows of all ranks are those of one; no step depends on another."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for index, size in enumerate((57, 9, 130)):
        ridgeline.pack([write(tmp_path, list(range(index * 200, index * 200 + size)))], folder / f"{index}.u16")
    source = open_source(str(folder), 1024, 0)
    whole = {step: batch_of(source, step, 8, 8, Layout()) for step in range(5)}
    assert len({tuple(row) for batch in whole.values() for row in batch.tokens.tolist()}) == 7 + 1 + 16
    for dp, cp in ((2, 1), (4, 1), (2, 2), (1, 4)):
        for step in (4, 0, 3):  # in any order: nothing is remembered
            ranks = [
                [
                    batch_of(source, step, 8, 8, Layout(dp=Axis(degree=dp, index=d), cp=Axis(degree=cp, index=c)))
                    for c in range(cp)
                ]
                for d in range(dp)
            ]
            spans = [span for c in range(cp) for span in Layout(cp=Axis(degree=cp, index=c)).positions(8 // cp)]
            order = torch.argsort(torch.tensor([place for begin, end in spans for place in range(begin, end)]))
            for part in ("tokens", "targets"):
                rows = torch.cat([torch.cat([getattr(one, part) for one in row], 1)[:, order] for row in ranks])
                assert torch.equal(rows, getattr(whole[step], part)), (dp, cp, step, part)


def test_the_verb_packs_and_says_what_is_wrong_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = write(tmp_path, [1, 2, 3])
    code, out, _ = command(capsys, monkeypatch, "pack", str(good), "-o", str(tmp_path / "a.u16"), "--json")
    assert (code, json.loads(out)["tokens"]) == (0, 3)
    for line, name, told in (
        ('{"tokens": [1, 70000]}', "b.u16", "write a .u32 file"),
        ('{"tokens": [-1, 2]}', "b.u16", "token -1"),
        ("nonsense", "b.u16", "docs.jsonl:1"),
        ('{"tokens": []}', "b.u16", "two or more"),
        ('{"tokens": [1, 2]}', "b.bin", ".u16 or .u32"),
    ):
        (tmp_path / "docs.jsonl").write_text(line + "\n")
        code, _, err = command(capsys, monkeypatch, "pack", str(good), "-o", str(tmp_path / name))
        assert code == 2, line
        assert told in err
        assert not list(tmp_path.glob("*b.u16*"))  # nothing is left half written
    code, _, err = command(capsys, monkeypatch, "pack", str(tmp_path / "absent.txt"), "-o", str(tmp_path / "b.u16"))
    assert code == 2
    assert "absent.txt" in err
