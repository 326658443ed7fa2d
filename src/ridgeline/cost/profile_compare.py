"""Turn two profiles into what differs between them, and profiles of several nodes into one with its slow chips named.

differs   |log(b / a)| > max(LEAST, spread_a + spread_b)               a, b = medians of the same kernel
slow      median over kernels of log(t_rank / median over ranks) more than FAR robust deviations beyond the others
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from types import MappingProxyType

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.cost.fingerprint import changes
from ridgeline.cost.profile import GROUPS, Ceiling, Measurement, Profile
from ridgeline.hardware.chip import Chip
from ridgeline.hardware.load import CHIPS, chip

LEAST = 0.02  # of a time: less is nobody's difference
FAR = 4.0  # robust deviations: median absolute deviations times 1.4826
SLOW = 0.03  # of a time: a chip that loses less is not named
FEWEST = 3  # ranks that a median of ranks needs


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDiff:
    """One kernel of both profiles: seconds of each, and whether they differ beyond their spread."""

    name: str
    group: str
    before_s: float
    after_s: float
    differs: bool

    JSON = "name before_s after_s ratio"

    @property
    def ratio(self) -> float:
        """after / before."""
        return self.after_s / self.before_s


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDiff:
    """Kernels of one group: how many, geometric mean of after / before, and how many differ which way."""

    name: str
    rows: int
    ratio: float
    slower: int
    faster: int

    JSON = "group=name rows ratio slower faster"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileDiff:
    """What differs between two profiles.

    facts     of device, host, software and fingerprint that differ: before and after
    failed    kernels that ran in one of them only
    only      rows that one of them alone has: before, after
    """

    before: str
    after: str
    facts: Mapping[str, tuple[str, str]]
    rows: tuple[RowDiff, ...]
    failed: tuple[str, ...]
    only: tuple[int, int]

    JSON = "kind='profile diff' before after facts groups rows=different[:400] failed only"

    @property
    def groups(self) -> tuple[GroupDiff, ...]:
        """By group, in the order of profiles."""
        return tuple(
            _group(name, group_rows)
            for name in (*GROUPS, "other")
            if (group_rows := [r for r in self.rows if r.group == name])
        )

    @property
    def different(self) -> tuple[RowDiff, ...]:
        """Kernels that differ beyond their spread, the most first."""
        differing = [row for row in self.rows if row.differs]
        return tuple(sorted(differing, key=lambda row: -abs(math.log(row.ratio))))


def _group(name: str, rows: Sequence[RowDiff]) -> GroupDiff:
    mean = math.exp(sum(math.log(row.ratio) for row in rows) / len(rows))
    slower = sum(row.differs and row.ratio > 1 for row in rows)
    faster = sum(row.differs and row.ratio < 1 for row in rows)
    return GroupDiff(name=name, rows=len(rows), ratio=mean, slower=slower, faster=faster)


def group_of(op: str) -> str:
    """The group of an op.

    >>> group_of("gemm"), group_of("all_reduce")
    ('products', 'interconnect')
    """
    return next((name for name, ops in GROUPS.items() if op in ops), "other")


def diff_profiles(before: Profile, after: Profile) -> ProfileDiff:
    """What differs between two profiles, kernel by kernel: two drivers, two cards, two days."""
    sides = [_by_name(profile) for profile in (before, after)]
    common = [name for name in sides[0] if name in sides[1]]
    rows, failures = [], []
    for name in common:
        old, new = sides[0][name], sides[1][name]
        if not (old.ok and new.ok):
            failures += [name] if old.ok != new.ok else []
            continue
        beyond = abs(math.log(new.seconds / old.seconds)) > max(LEAST, old.spread + new.spread)
        row = RowDiff(name=name, group=group_of(old.op), before_s=old.seconds, after_s=new.seconds, differs=beyond)
        rows.append(row)
    return ProfileDiff(
        before=before.title,
        after=after.title,
        facts=_facts(before, after),
        rows=tuple(rows),
        failed=tuple(failures),
        only=(len(sides[0]) - len(common), len(sides[1]) - len(common)),
    )


def _by_name(profile: Profile) -> dict[str, Measurement]:
    """Rows by what was measured; ranks of one kernel become their median."""
    rows_by_name: dict[str, list[Measurement]] = {}
    for row in profile.rows:
        rows_by_name.setdefault(row.name, []).append(row)
    return {name: _median(rows) for name, rows in rows_by_name.items()}


def _median(rows: Sequence[Measurement]) -> Measurement:
    ran = sorted((row for row in rows if row.ok), key=lambda row: row.seconds)
    if len(ran) < 2:
        return ran[0] if ran else rows[0]
    return replace(ran[len(ran) // 2], seconds=median(row.seconds for row in ran), rank=None)


def _facts(before: Profile, after: Profile) -> dict[str, tuple[str, str]]:
    differences: dict[str, tuple[str, str]] = {}
    for part in ("device", "host", "software"):
        old, new = getattr(before, part), getattr(after, part)
        for key in dict.fromkeys((*old, *new)):
            if old.get(key) != new.get(key):
                differences[f"{part}.{key}"] = (str(old.get(key, "–")), str(new.get(key, "–")))
    if before.fingerprint and after.fingerprint:
        differences |= changes(before.fingerprint, after.fingerprint, "fingerprint.")
    return differences


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowChip:
    """A rank that is slower than its peers.

    loses       median over its kernels of its time over the ranks' median, less 1
    deviations  robust standard deviations beyond the median rank
    kernels     compared; the worst of them is named
    """

    rank: int
    loses: float
    deviations: float
    kernels: int
    worst: str
    worst_loses: float


def slow_chips(profile: Profile) -> tuple[SlowChip, ...]:
    """The ranks that lose more than their peers, the slowest first; none where there are fewer than three ranks."""
    ratios: dict[int, dict[str, float]] = {}
    for name, rows in _rank_ratios(profile).items():
        middle = median(rows.values())
        for rank, seconds in rows.items():
            ratios.setdefault(rank, {})[name] = math.log(seconds / middle)
    if len(ratios) < FEWEST:
        return ()
    typical = {rank: median(rank_ratios.values()) for rank, rank_ratios in ratios.items()}
    middle = median(typical.values())
    scale = max(1.4826 * median(abs(value - middle) for value in typical.values()), 0.002)
    chips = []
    for rank, value in typical.items():
        deviation = (value - middle) / scale
        if deviation > FAR and math.expm1(value - middle) > SLOW:
            worst = max(ratios[rank], key=lambda name, own=ratios[rank]: own[name])  # type: ignore[misc]
            chips.append(
                SlowChip(
                    rank=rank,
                    loses=math.expm1(value - middle),
                    deviations=deviation,
                    kernels=len(ratios[rank]),
                    worst=worst,
                    worst_loses=math.expm1(ratios[rank][worst]),
                )
            )
    return tuple(sorted(chips, key=lambda one: -one.loses))


def _rank_ratios(profile: Profile) -> dict[str, dict[int, float]]:
    """Seconds by kernel and rank, of kernels that three ranks and more ran by themselves."""
    ratios: dict[str, dict[int, float]] = {}
    for row in profile.rows:
        if row.ok and row.rank is not None and group_of(row.op) != "interconnect":
            ratios.setdefault(row.name, {})[row.rank] = row.seconds
    return {name: rows for name, rows in ratios.items() if len(rows) >= FEWEST}


def merge_profiles(profiles: Sequence[Profile]) -> Profile:
    """Profiles of several nodes as one of the system: all rows, ranks told apart; `InputError` where chips differ.

    Rows without a rank get one for each file: the number of the file, upon the ranks that came before.
    """
    chips = dict.fromkeys(profile.chip for profile in profiles)
    if len(chips) > 1:
        given_text = ", ".join(chip or "an unknown chip" for chip in chips)
        raise InputError(
            Problem(path="profile", given=given_text, expected="profiles of one chip", todo="merge each apart")
        )
    rows: list[Measurement] = []
    first = 0
    for profile in profiles:
        ranks = {row.rank for row in profile.rows if row.rank is not None}
        rows += [replace(row, rank=first + (row.rank or 0)) for row in profile.rows]
        first += max(ranks, default=0) + 1
    count = sum(int(profile.device.get("count") or 1) for profile in profiles)
    first_profile = profiles[0]
    device = {**first_profile.device, "count": count}
    prints = [profile.fingerprint for profile in profiles if profile.fingerprint]
    fingerprint = (
        prints[0]
        if prints and all(fingerprint_table == prints[0] for fingerprint_table in prints)
        else MappingProxyType({})
    )
    newest = max(profile.taken for profile in profiles)
    return replace(first_profile, rows=tuple(rows), device=device, taken=newest, fingerprint=fingerprint)


def medians(profile: Profile) -> Profile:
    """The profile with one row for each kernel: the median of its ranks."""
    return replace(profile, rows=tuple(_by_name(profile).values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileReport:
    """What a profile comes down to.

    rows       kernels that were measured, by op
    failed     kernels that did not run, and why
    ceilings   the best rate of each kind beside the data sheet
    slow       ranks that are slower than their peers
    """

    profile: Profile
    chip: Chip | None

    JSON = """
        kind='profile' chip=chip_id title=profile.title device=profile.device software=profile.software
        taken=profile.taken rows failed ceilings slow
    """

    @property
    def chip_id(self) -> str | None:
        return self.profile.chip or None

    @property
    def rows(self) -> dict[str, int]:
        return dict(Counter(row.op for row in self.profile.rows if row.ok))

    @property
    def failed(self) -> dict[str, str]:
        return {row.name: row.error for row in self.profile.rows if not row.ok}

    @property
    def ceilings(self) -> tuple[Ceiling, ...]:
        return self.profile.ceilings(self.chip)

    @property
    def slow(self) -> tuple[SlowChip, ...]:
        return slow_chips(self.profile)


def profile_report(profile: Profile) -> ProfileReport:
    """A profile beside its chip of the catalog, if it has one."""
    return ProfileReport(profile=profile, chip=chip(profile.chip) if profile.chip in CHIPS else None)
