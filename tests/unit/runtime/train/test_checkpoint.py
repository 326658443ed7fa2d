"""Checkpoints that somebody else made: read as data, never run."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.checkpoint import FileSystemWriter, load, save  # noqa: E402
from torch.distributed.checkpoint.metadata import Metadata  # noqa: E402

from ridgeline.core.errors import InputError  # noqa: E402
from ridgeline.runtime.train.checkpoint import METADATA, MetadataReader  # noqa: E402


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    state = {"weight.a": torch.arange(12.0).reshape(3, 4), "moment.a": torch.ones(3, dtype=torch.bfloat16)}
    save(state, storage_writer=FileSystemWriter(tmp_path / "step", per_thread_copy_ahead=0), no_dist=True)
    return tmp_path / "step"


def test_a_checkpoint_of_ours_is_read(checkpoint: Path) -> None:
    state = {"weight.a": torch.zeros(3, 4), "moment.a": torch.zeros(3, dtype=torch.bfloat16)}
    load(state, storage_reader=MetadataReader(checkpoint), no_dist=True)
    assert state["weight.a"].tolist() == torch.arange(12.0).reshape(3, 4).tolist()
    assert state["moment.a"].tolist() == [1.0, 1.0, 1.0]


class Attack:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (self.command,)


def test_code_in_the_metadata_is_not_run(checkpoint: Path, tmp_path: Path) -> None:
    metadata = pickle.loads((checkpoint / METADATA).read_bytes())
    metadata.planner_data = Attack(f"touch {tmp_path / 'owned'}")
    (checkpoint / METADATA).write_bytes(pickle.dumps(metadata))
    with pytest.raises(InputError, match="resume only from checkpoints"):
        MetadataReader(checkpoint).read_metadata()
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("content", [b"", b"\x80", b"not a pickle", pickle.dumps([1, 2])])
def test_what_is_no_metadata_is_refused(checkpoint: Path, content: bytes) -> None:
    (checkpoint / METADATA).write_bytes(content)
    with pytest.raises(InputError, match="metadata"):
        MetadataReader(checkpoint).read_metadata()


def test_files_elsewhere_are_not_read(checkpoint: Path) -> None:
    metadata = pickle.loads((checkpoint / METADATA).read_bytes())
    assert isinstance(metadata, Metadata)
    for info in metadata.storage_data.values():
        info.relative_path = "../../elsewhere"
    (checkpoint / METADATA).write_bytes(pickle.dumps(metadata))
    with pytest.raises(InputError, match="elsewhere"):
        MetadataReader(checkpoint).read_metadata()
