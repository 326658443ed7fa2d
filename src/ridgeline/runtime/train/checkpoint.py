"""Save and load a run with torch.distributed.checkpoint: asynchronously, atomically, on any mesh.

    FOLDER/step-00000020/           torch.distributed.checkpoint's own files
    FOLDER/step-00000020/sound.json step, and size and SHA-256 of every file: written last
    FOLDER/.step-00000030.part/     one that is being written; renamed when it is whole

Weights, master copies and the optimizer's moments are stored under the names of the model's parameters as DTensors, so
that a run resumes with other degrees, stages or sharding. What is written is copied first: the run goes on meanwhile. A
folder without `sound.json`, or with a file that is not as it says, is passed over for the one before it.

torch's `.metadata` is a pickle, and a pickle can call any function. A checkpoint may come from somebody else, so it is
read by an unpickler that knows the classes such a file consists of and refuses every other.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import MappingProxyType

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import write_text
from ridgeline.runtime.train.assemble import Assembly
from ridgeline.runtime.train.run_folder import CHECKPOINTS, checkpoint_folder, steps
from ridgeline.runtime.train.update import MOMENTS, Update

SOUND = "sound.json"
METADATA = ".metadata"
KEPT = 2  # checkpoints: the newest, and the one before it should that be damaged
METADATA_CLASSES = {
    "torch.distributed.checkpoint.metadata": (
        *("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "TensorStorageMetadata"),
        *("ChunkStorageMetadata", "_MEM_FORMAT_ENCODING"),
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo", "_StoragePrefix"),
    "torch.serialization": ("_get_layout",),
    "pathlib": ("Path", "PosixPath", "WindowsPath", "PurePosixPath"),
    "pathlib._local": ("Path", "PosixPath", "WindowsPath", "PurePosixPath"),
    "collections": ("OrderedDict",),
}
"""Module -> what a checkpoint's metadata consists of, beside torch's own sizes and dtypes. Tensors alone are stored, so
that bytes, which torch would unpickle, are not among them."""


def part(folder: Path, step: int) -> Path:
    return folder / f".step-{step:08d}.part"


def publish(folder: Path, step: int, facts: JsonObject) -> Path:
    """Make a written checkpoint count: note its files, rename it, and let go of old ones."""
    written, final = part(folder, step), checkpoint_folder(folder, step)
    files = {path.name: _seal(path) for path in sorted(written.iterdir()) if path.name != SOUND}
    write_text(written / SOUND, json.dumps({"step": step, **facts, "files": files}, indent=2) + "\n")
    if final.exists():
        shutil.rmtree(final)
    os.replace(written, final)
    for old in steps(folder)[KEPT:]:
        shutil.rmtree(checkpoint_folder(folder, old), ignore_errors=True)
    return final


def forget_parts(folder: Path) -> None:
    """Make the folder, without what an earlier run left half written."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in folder.glob(".step-*.part"):
        shutil.rmtree(part, ignore_errors=True)


def newest_sound(folder: Path) -> tuple[Path | None, int, list[str]]:
    """The newest checkpoint that is as it was written (or None), its step, and what is wrong with newer ones."""
    skipped_steps: list[str] = []
    for step in steps(folder):
        wrong = damage(checkpoint_folder(folder, step))
        if wrong is None:
            return checkpoint_folder(folder, step), step, skipped_steps
        skipped_steps.append(f"checkpoint of step {step} is damaged: {wrong}")
    return None, 0, skipped_steps


def facts_of(checkpoint: Path) -> JsonObject:
    facts: JsonObject = json.loads((checkpoint / SOUND).read_text(encoding="utf-8"))
    return {name: value for name, value in facts.items() if name != "files"}


def damage(checkpoint: Path) -> str | None:
    try:
        facts = json.loads((checkpoint / SOUND).read_text(encoding="utf-8"))
        files = dict(facts["files"])
    except (OSError, ValueError, KeyError, TypeError) as wrong:
        return f"{SOUND}: {type(wrong).__name__}"
    for name, seal in files.items():
        if Path(name).name != name:
            return f"{SOUND} names a file outside"
        try:
            found = _seal(checkpoint / name)
        except OSError as wrong:
            return f"{name}: {wrong.strerror}"
        if found != seal:
            return f"{name}: {found['bytes']} bytes, not as written"
    return None


def _seal(path: Path) -> JsonObject:
    with path.open("rb") as stream:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


class MetadataUnpickler(pickle.Unpickler):
    """Reads a checkpoint's metadata and calls nothing but the classes that it consists of."""

    def find_class(self, module: str, name: str) -> object:
        is_torch_value = module == "torch" and (name == "Size" or isinstance(getattr(torch, name, None), torch.dtype))
        if is_torch_value or name in METADATA_CLASSES.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name}, which no metadata of a checkpoint holds")


class MetadataReader(FileSystemReader):  # type: ignore[misc]
    """Reads a checkpoint's files without running code that somebody put into them."""

    def read_metadata(self, *_: object, **__: object) -> Metadata:
        """Where every tensor lies; an `InputError` where the file holds anything else."""
        path = Path(self.path) / METADATA
        try:
            with path.open("rb") as stream:
                metadata = MetadataUnpickler(stream).load()
            names = [info.relative_path for info in metadata.storage_data.values()]
        except Exception as wrong:  # whatever a damaged pickle makes of itself
            raise _refuse_metadata(path, f"{type(wrong).__name__}: {wrong}") from None
        outside = [name for name in names if not isinstance(name, str) or Path(name).name != name]
        if not isinstance(metadata, Metadata) or outside:
            raise _refuse_metadata(path, f"a file elsewhere, {outside[0]!r}" if outside else type(metadata).__name__)
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


def _refuse_metadata(path: Path, given: str) -> InputError:
    todo = "resume only from checkpoints that a run of yours wrote"
    expectation = "the metadata of a checkpoint of tensors"
    return InputError(Problem(path=str(path), given=given[:300], expected=expectation, todo=todo))


class Checkpoints:
    """The checkpoints of one run; at most one is being written at a time.

    beside    other models of the run by role, with their optimizers: stored in the same files as ROLE/NAME
    last      the newest that counts
    unsaved   the newest that was begun could not be written: the run went on, and the one before it counts
    """

    def __init__(
        self, folder: Path, assembly: Assembly, update: Update, note: Callable[[str], None],
        beside: Mapping[str, tuple[Assembly, Update]] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.folder, self.assembly, self.update, self.note = folder / CHECKPOINTS, assembly, update, note
        self.beside = beside
        self.pending: tuple[int, Future[object]] | None = None
        self.last = ""
        self.unsaved = False
        many = assembly.layout.ranks > 1
        self.group = dist.new_group(backend="gloo") if many else None  # beside the run's own collectives
        self.group_options: JsonObject = {"process_group": self.group} if self.group else {"no_dist": True}
        if assembly.layout.rank == 0:
            forget_parts(self.folder)
        if many:
            dist.barrier(self.group)

    def save(self, step: int, facts: JsonObject) -> None:
        """Begin to write the state behind a step; the one before it is finished first."""
        from torch.distributed.checkpoint import FileSystemWriter, async_save

        self.finish()
        self.facts = facts
        writer = FileSystemWriter(part(self.folder, step))
        state = {name: value.clone() for name, value in self._state().items()}
        self.pending = step, async_save(state, storage_writer=writer, **self.group_options)

    def look(self) -> None:
        """Make count what has been written meanwhile; costs nothing where it has not."""
        if self.pending is not None and self.pending[1].done():
            self.finish()

    def finish(self) -> None:
        """Wait for what is being written and make it count. Rank 0 ends last: it writes the list of all files.

        What cannot be written (a full disk) is forgotten by every rank alike, and said; the run goes on.
        """
        if self.pending is None:
            return
        step, written = self.pending
        self.pending = None
        try:
            written.result()
            if self.assembly.layout.rank == 0:
                self.last = str(publish(self.folder, step, self.facts))
            self.unsaved = False
        except (OSError, CheckpointException) as wrong:
            self.unsaved = True
            if self.assembly.layout.rank == 0:
                forget_parts(self.folder)
                instead = next((f"that of step {saved_step}" for saved_step in steps(self.folder)), "none")
                self.note(f"checkpoint of step {step} was not written: {_cause(wrong)}; {instead} counts")

    def load(self, facts: JsonObject) -> tuple[int, list[str]]:
        """Go on from the newest sound checkpoint: the step it was taken behind, and what was passed over or differs."""
        from torch.distributed.checkpoint import load

        newest: list[tuple[Path | None, int, list[str]] | InputError] = [(None, 0, [])]
        if self.assembly.layout.rank == 0:
            try:
                newest = [_newest(self.folder, facts)]
            except InputError as refusal:
                newest = [refusal]  # every rank refuses alike
        if self.group is not None:
            dist.broadcast_object_list(newest, group=self.group)
        if isinstance(newest[0], InputError):
            raise newest[0]
        path, step, skipped_steps = newest[0]
        if path is None and skipped_steps:
            todo = "run without --resume to begin anew, or name another folder"
            raise InputError(
                Problem(path="--resume", given="; ".join(skipped_steps), expected="a sound checkpoint", todo=todo)
            )
        if path is None:
            return 0, []
        state, reader = self._state(), MetadataReader(path)
        reader.read_metadata()  # a refusal is told as it is, not as a failure of some ranks
        load(state, storage_reader=reader, **self.group_options)
        self._restore(step)
        return step, skipped_steps

    def _state(self) -> dict[str, Tensor]:
        """Every tensor of the run by the name it is stored under, sharing memory with the run."""
        state = _tensors_of(self.assembly, self.update)
        for role, model_state in self.beside.items():
            state |= {f"{role}/{name}": tensor for name, tensor in _tensors_of(*model_state).items()}
        return state

    def _restore(self, step: int) -> None:
        """The optimizer's own count of steps; and one matrix for both copies of an embedding on this rank."""
        self.update.set_steps(step)
        copy = self.assembly.embedding_copy
        if copy and {"embedding.weight", copy} <= set(self.update.named):
            self.update.copy_state(copy, "embedding.weight")


def _tensors_of(assembly: Assembly, update: Update) -> dict[str, Tensor]:
    """Weights, master copies and moments of one model."""
    state: dict[str, Tensor] = {}
    copy, has_both_ends = assembly.embedding_copy, "embedding.weight" in update.named
    for name, parameter in update.named.items():
        end = name == copy
        if end and has_both_ends:  # a matrix that two stages hold is stored once
            continue
        stored_name = "embedding.weight" if end else name
        state[f"weight.{stored_name}"] = parameter.detach()
        master = update.masters[name]
        if master is not update.shards[name]:
            state[f"master.{stored_name}"] = _as(parameter, master)
        for moment in MOMENTS:
            state[f"{moment}.{stored_name}"] = _as(parameter, update.moment(name, moment))
    return state


def _newest(folder: Path, facts: JsonObject) -> tuple[Path | None, int, list[str]]:
    """The newest sound checkpoint, and notes: damaged ones, and what of the data's order is not as it was."""
    path, step, skipped_steps = newest_sound(folder)
    before = facts_of(path) if path else {}
    model = before.get("model", facts.get("model"))
    if model != facts.get("model"):
        todo = "resume with the scenario that began the run, or name another folder"
        raise InputError(
            Problem(path="--resume", given=f"a checkpoint of {model}", expected=str(facts.get("model")), todo=todo)
        )
    for name, now in facts.items():
        if name in before and before[name] != now:
            skipped_steps.append(f"{name} was {before[name]} up to step {step} and is {now}: other data follows")
    return path, step, skipped_steps


def _cause(wrong: BaseException) -> str:
    """Why a checkpoint could not be written, of the first rank that says so."""
    if isinstance(wrong, CheckpointException):
        rank, (first, _) = next(iter(wrong.failures.items()))
        return f"rank {rank}: {_cause(first)}"
    if isinstance(wrong, OSError) and wrong.strerror:
        return wrong.strerror
    return f"{type(wrong).__name__}: {(str(wrong).strip().splitlines() or [''])[0][:200]}"


def _as(parameter: Tensor, local: Tensor) -> Tensor:
    """A shard beside a parameter's, placed as the parameter is."""
    if not hasattr(parameter, "placements"):
        return local
    from torch.distributed.tensor import DTensor

    layout_options = {"shape": parameter.shape, "stride": parameter.stride(), "run_check": False}
    return DTensor.from_local(local, parameter.device_mesh, parameter.placements, **layout_options)
