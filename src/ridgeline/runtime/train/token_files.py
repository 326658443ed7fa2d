"""Pack documents into one memory-mapped file of tokens, and read sequences of such files by their number.

    FILE.u16, FILE.u32        tokens of all documents, one after the other, as little-endian integers
    FILE.u16.ends             where each document ends, as 64-bit integers: how many tokens lie before

Sequences are cut from the stream end to end, as GPT-3 and Megatron do: a document may go on in the next sequence, and
attention sees the whole sequence, so also the documents before (no document masks). An end token between documents,
where one is named, tells the model. Sequence i is a function of i alone, whatever the mesh and wherever a run resumes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.errors import InputError, Problem

KINDS: dict[str, np.dtype[np.integer]] = {".u16": np.dtype("<u2"), ".u32": np.dtype("<u4")}
ENDS = ".ends"
EXPECTED = 'text, {"text": "..."} or {"tokens": [...]} a line'


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A file of tokens that was written.

    largest   the largest token: a vocabulary must be larger
    """

    path: Path
    documents: int
    tokens: int
    largest: int

    JSON = "kind='pack' output=path documents tokens largest"


def pack(sources: Iterable[Path | str], output: Path | str, *, end: int | None = None) -> Packed:
    """Write the documents of text files (one each, as bytes) and JSON lines (text or tokens) as one file of tokens.

    end   a token put behind every document
    """
    path = Path(output)
    if path.suffix not in KINDS:
        raise InputError(Problem(path="-o", given=path.name, expected="a name that ends in .u16 or .u32"))
    kind = KINDS[path.suffix]
    largest_token = int(np.iinfo(kind).max)
    if end is not None and not 0 <= end <= largest_token:
        raise InputError(Problem(path="--end", given=str(end), expected=f"a token from 0 to {largest_token}"))
    part = path.with_name(f".{path.name}.part")
    ends, largest, total = [], 0 if end is None else end, 0
    try:
        with part.open("wb") as stream:
            for where, document in documents(sources):
                tokens = _fitting(document if end is None else [*document, end], largest_token, where)
                stream.write(tokens.astype(kind).tobytes())
                total += len(tokens)
                largest = max(largest, int(tokens.max(initial=0)))
                ends.append(total)
            stream.flush()
            os.fsync(stream.fileno())
        if total < 2:
            raise InputError(Problem(path="FILES", given=f"{total} tokens", expected="two or more"))
        path.with_name(path.name + ENDS).write_bytes(np.array(ends, dtype="<u8").tobytes())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return Packed(path=path, documents=len(ends), tokens=total, largest=largest)


def documents(sources: Iterable[Path | str]) -> Iterator[tuple[str, Sequence[int]]]:
    """Every document as tokens, with where it stands; the tokens of a text are its bytes in UTF-8."""
    for source in map(Path, sources):
        if source.suffix != ".jsonl":
            yield str(source), list(source.read_bytes())
            continue
        with source.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f"{source}:{number}", _of_line(line, f"{source}:{number}")


def _of_line(line: bytes, where: str) -> Sequence[int]:
    try:
        document: object = json.loads(line)
    except (ValueError, RecursionError):
        document = None
    document = document if isinstance(document, dict) else {}
    text, tokens = document.get("text"), document.get("tokens")
    if isinstance(text, str):
        return list(text.encode("utf-8", "surrogatepass"))
    if isinstance(tokens, list) and all(type(token) is int for token in tokens):
        return tokens
    given_text = line[:60].decode("utf-8", "replace").strip()
    raise InputError(Problem(path="", given=given_text, expected=EXPECTED, where=where))


def _fitting(tokens: Sequence[int], most: int, where: str) -> NDArray[np.int64]:
    wrong = next((token for token in tokens if not 0 <= token <= most), None)
    if wrong is not None:
        todo = "write a .u32 file" if wrong > most else ""
        raise InputError(Problem(path="", given=f"token {wrong}", expected=f"0 to {most}", todo=todo, where=where))
    return np.array(tokens, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFiles:
    """The shards of a data set, memory-mapped: sequences are numbered through them in the order of their names."""

    shards: tuple[NDArray[np.integer], ...]

    def read(self, index: int, length: int, further: int = 0) -> NDArray[np.int64]:
        """Sequence `index` of so many tokens; neighbours share one, the last target of the first. Wraps at the end.
        The `further` tokens that follow it in its shard come behind; a shard's beginning follows its end.

        >>> TokenFiles(shards=(np.arange(5), np.arange(10, 17))).read(2, 4)
        array([13, 14, 15, 16])
        >>> TokenFiles(shards=(np.arange(5), np.arange(10, 17))).read(2, 4, 2)
        array([13, 14, 15, 16, 10, 11])
        """
        counts = [max(0, (len(shard) - 1) // (length - 1)) for shard in self.shards]
        if not sum(counts):  # shorter than a sequence: repeated
            all_tokens = np.concatenate([np.asarray(shard) for shard in self.shards])
            return np.resize(all_tokens, length + further).astype(np.int64)
        remainder = index % sum(counts)
        for shard, count in zip(self.shards, counts, strict=True):
            if remainder < count:
                tokens = np.asarray(shard[remainder * (length - 1) :][: length + further], dtype=np.int64)
                missing = length + further - len(tokens)
                return np.concatenate([tokens, np.resize(shard, missing).astype(np.int64)]) if missing else tokens
            remainder -= count
        raise AssertionError("an index below the number of sequences is in a shard")


def open_tokens(path: Path) -> TokenFiles:
    """A file of tokens, or all of a folder by name."""
    shard_files = sorted(file for file in path.iterdir() if file.suffix in KINDS) if path.is_dir() else [path]
    if not shard_files or any(file.suffix not in KINDS or not file.is_file() for file in shard_files):
        expected_text = "synthetic, text, a file of tokens (.u16, .u32), or a folder of such files"
        todo = "`ridgeline pack` writes one"
        raise InputError(Problem(path="--data", given=str(path), expected=expected_text, todo=todo))
    sizes = [file.stat().st_size // KINDS[file.suffix].itemsize for file in shard_files]
    if sum(sizes) < 2:
        raise InputError(Problem(path="--data", given=f"{sum(sizes)} tokens", expected="two or more", where=str(path)))
    shards = (
        np.memmap(file, KINDS[file.suffix], "r", shape=(size,))
        for file, size in zip(shard_files, sizes, strict=True)
        if size
    )
    return TokenFiles(shards=tuple(shards))
