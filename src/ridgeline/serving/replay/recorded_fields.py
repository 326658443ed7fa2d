"""Checked values out of a recording: what is hostile or absurd is refused with the place it stands at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.units import BINARY
from ridgeline.serving.request import Piece, Request

MOST_REQUESTS = 1_000_000
MOST_BLOCKS = int(16 * BINARY["Mi"])  # of a pool, and of all prompts together
MOST_TOKENS = int(1 * BINARY["Gi"])  # of one number in a recording
OUTPUT_SEEDS = 10_000  # the k-th sampled token of request n is token (prompt + k) of text 10000 + n

Fields = JsonObject


def requests(entries: object, block_size: int) -> tuple[Request, ...]:
    """The requests of a recording: id, prompt as [seed, length] pieces, max_tokens, priority; output_tokens of an
    answer that stopped before its max_tokens."""
    rows = list_field(entries, "requests")
    if not rows or len(rows) > MOST_REQUESTS:
        raise wrong("requests", f"{len(rows)} requests", f"1 to {MOST_REQUESTS:,}")
    made = tuple(_request(row, number) for number, row in enumerate(rows))
    if len({request.id for request in made}) < len(made):
        raise wrong("requests", "an id twice", "ids that differ")
    check_size(made, block_size)
    return made


def steps(entries: object) -> tuple[Fields, ...]:
    """The recorded steps."""
    made = tuple(table(step, f"steps[{number}]") for number, step in enumerate(list_field(entries, "steps")))
    if not made:
        raise wrong("steps", "no steps", "at least one recorded step")
    return made


def _request(entry: object, number: int) -> Request:
    where = f"requests[{number}]"
    fields = table(entry, where)
    pieces = []
    for piece in list_field(fields.get("prompt"), f"{where}.prompt"):
        if not isinstance(piece, list) or len(piece) != 2:
            raise wrong(f"{where}.prompt", repr(piece)[:60], "pieces of [seed, length]")
        pieces.append(
            Piece(seed=check_int(piece[0], f"{where}.prompt"), tokens=check_int(piece[1], f"{where}.prompt", least=0))
        )
    tokens = int_field(fields, "max_tokens", least=1, where=where)
    stopped = int_field(fields, "output_tokens", default=tokens, least=1, most=tokens, where=where)
    request = Request(
        id=name(fields.get("id"), f"{where}.id"),
        arrival_s=0.0,
        prompt=tuple(pieces),
        output_tokens=stopped,
        max_new_tokens=tokens,
        priority=int_field(fields, "priority", default=0, least=-MOST_TOKENS, where=where),
        output_seed=OUTPUT_SEEDS + number,
    )
    if not request.prompt_tokens:
        raise wrong(f"{where}.prompt", "no tokens", "a prompt of at least one token")
    return request


def check_size(requests: Sequence[Request], block_size: int) -> None:
    blocks = sum(request.prompt_tokens // block_size + 1 for request in requests)
    if blocks > MOST_BLOCKS:
        raise wrong("requests", f"prompts of {blocks:,} blocks", f"at most {MOST_BLOCKS:,}")


def wrong(path: str, given: str, expected: str) -> InputError:
    return InputError(Problem(path=path, given=given, expected=expected))


def table(value: object, path: str) -> Fields:
    if not isinstance(value, dict):
        raise wrong(path, repr(value)[:60], "an object")
    return value


def list_field(value: object, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise wrong(path, repr(value)[:60], "a list")
    return value


def name(value: object, path: str) -> str:
    if not isinstance(value, str) or not value or len(value) > 200:
        raise wrong(path, repr(value)[:60], "a name of at most 200 characters")
    return value


def flag(fields: Fields, name: str, *, default: bool) -> bool:
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise wrong(f"config.{name}", repr(value)[:60], "true or false")
    return value


def int_field(
    fields: Fields, name: str, *, default: int | None = None, least: int = 0, most: int = MOST_TOKENS, where: str = ""
) -> int:
    value = fields.get(name, default)
    return check_int(value, f"{where}.{name}" if where else name, least=least, most=most)


def check_int(value: object, path: str, *, least: int = -MOST_TOKENS, most: int = MOST_TOKENS) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise wrong(path, repr(value)[:60], f"a whole number from {least:,} to {most:,}")
    return value
