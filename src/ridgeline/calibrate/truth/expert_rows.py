"""Turn the text of a measured MoE dispatch or combine into what it moved: tokens, bytes of a token, experts, limits."""

from __future__ import annotations

import re

from ridgeline.calibrate.truth.csv_cells import RowCells, Unusable
from ridgeline.core.units import DECIMAL
from ridgeline.cost.library_times.question import Experts, Software

_TOKENS = re.compile(r"tokens/rank=(\d{1,7})|\b(\d{1,7})(K?) tok", re.IGNORECASE)
_HIDDEN = re.compile(r"hidden[ =](\d{2,6})|\bh(\d{4,6})\b")
_TOP = re.compile(r"\btop-?(\d{1,3})\b(?! groups)")
_GROUPS = re.compile(r"\btop-?(\d{1,3}) groups")
_CORES = re.compile(r"\b(?:sms|#SMs)=(\d{1,3})\b")
HIDDEN, TOP_K, TOKENS = 7168, 8, 4096  # DeepSeek-V3, which DeepEP's tests are about
CORES = 20.0  # that DeepEP's normal kernels take unless told
SCALED = 1 + 4 / 128  # bytes of an fp8 element: one fp32 scale for 128 of them


def experts_of(cells: RowCells, kind: str, software: Software) -> Experts:
    """What a row moved; what its text leaves out is assumed as in DeepEP's tests, and noted."""
    text = cells.text("notes")
    hidden = _number(cells, _HIDDEN, text, "hidden", HIDDEN)
    top_k = _number(cells, _TOP, text, "experts of a token", TOP_K)
    groups, cores = _GROUPS.search(text), _CORES.search(text)
    token_bytes = hidden * (2.0 if kind == "combine" else SCALED)
    return Experts(
        tokens=_tokens(cells, text, token_bytes * top_k, software),
        token_bytes=token_bytes,
        top_k=top_k,
        nodes=float(groups.group(1)) if groups else 0.0,
        cores=max(1.0, float(cores.group(1))) if cores else CORES,
    )


def _number(cells: RowCells, pattern: re.Pattern[str], text: str, what: str, default: int) -> float:
    found = pattern.search(text)
    if found is None:
        cells.note(f"{what} = {default}: not stated")
        return float(default)
    value = float(next(part for part in found.groups() if part))
    if value <= 0:
        raise Unusable("notes", f"got {what} of 0")
    return value


def _tokens(cells: RowCells, text: str, copies_bytes: float, software: Software) -> float:
    """Tokens of a rank: stated, or from rate times time where the rate counts every copy, or as usual."""
    found = _TOKENS.search(text)
    if found is not None:
        plain, short, kilo = found.groups()
        tokens = float(plain or short) * (1024 if kilo else 1)
        if tokens > 0:
            return tokens
    rate, taken = cells.number("algbw_GBps"), cells.number("latency_us")
    if software == "deepep-ll" and rate is not None and taken is not None:
        cells.note("tokens from rate times time")
        return rate * DECIMAL["G"] * taken * DECIMAL["u"] / copies_bytes
    cells.note(f"tokens = {TOKENS}: not stated")
    return float(TOKENS)
