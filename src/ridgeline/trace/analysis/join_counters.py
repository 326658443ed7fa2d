"""Turn hardware counters (Nsight Compute) and a timeline into kernels of the timeline with what they measured."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.core.arrays import Mask
from ridgeline.trace.read.kernel_counters import KernelCounters
from ridgeline.trace.timeline import KERNEL, Timeline

_WORDS = re.compile(r"[A-Za-z_]\w{3,}")
_UNNAMED = re.compile(r"(?:<unnamed>|\(anonymous namespace\))::")
_RETURNS = re.compile(r"^(?:void|bool|int|float|double) ")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredKernel:
    """A kernel of the timeline with its counters."""

    counters: KernelCounters
    names: tuple[str, ...]
    """Names in the timeline that the counters' name means."""
    class_: str
    spans: int
    total_ns: int
    rows: tuple[int, ...]
    """The longest, as rows of the timeline."""

    JSON = "*counters class spans total_us span_ids=rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedCounters:
    """Counters with a place in the timeline, and those without one."""

    kernels: tuple[MeasuredKernel, ...] = ()
    absent: tuple[KernelCounters, ...] = ()

    JSON = "kernel_counters=kernels[:200] counters_not_in_trace=absent_names"

    @property
    def absent_names(self) -> tuple[str, ...]:
        """Names of kernels with counters that the timeline does not have."""
        return tuple(kernel.name for kernel in self.absent[:200])


def join_counters(line: Timeline, counted: Mask, counters: Sequence[KernelCounters]) -> JoinedCounters:
    """Kernels of the timeline by name: whole, without parameters, or the function's own name, the first that fits.

    Several kernels of one function differ in what they are instantiated with; tools spell that differently, so each
    goes to the counters whose name has most words in common with its own.
    """
    rows = np.flatnonzero(counted & line.of_kind(KERNEL))
    codes = np.unique(line.name[rows]).tolist()
    codes_of_counter: dict[int, list[int]] = {}
    for level in LEVELS:
        open_ = [index for index in range(len(counters)) if index not in codes_of_counter]
        free = _by(level, line, set(codes).difference(*codes_of_counter.values()))
        codes_of_name: dict[str, list[int]] = {}
        for index in open_:
            codes_of_name.setdefault(level(counters[index].name), []).append(index)
        for name, own in codes_of_name.items():
            for code in free.get(name, ()):
                codes_of_counter.setdefault(
                    max(own, key=lambda index: name_similarity(counters[index].name, line.names[code])), []
                ).append(code)
    kernels = [_measured_kernel(line, rows, codes, counters[index]) for index, codes in codes_of_counter.items()]
    return JoinedCounters(
        kernels=tuple(sorted(kernels, key=lambda one: -one.total_ns)),
        absent=tuple(counter for index, counter in enumerate(counters) if index not in codes_of_counter),
    )


def name_similarity(a: str, b: str) -> float:
    """Share of the words of two names that are in both.

    >>> (name_similarity("each<Gelu, Half>(int)", "void at::each<at::Gelu>"),
    ...  name_similarity("each<Gelu>", "each<Sigmoid>"),)
    (0.5, 0.3333333333333333)
    """
    left_words, right = set(_WORDS.findall(a)), set(_WORDS.findall(b))
    return len(left_words & right) / max(1, len(left_words | right))


def _by(level: Callable[[str], str], line: Timeline, codes: Iterable[int]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for code in sorted(codes):
        places.setdefault(level(line.names[code]), []).append(code)
    return places


def _measured_kernel(line: Timeline, rows: np.ndarray, codes: list[int], one: KernelCounters) -> MeasuredKernel:
    kernel_rows = rows[np.isin(line.name[rows], codes)]
    duration = line.durations_ns(kernel_rows)
    longest = kernel_rows[np.argsort(-duration, kind="stable")[:3]]
    return MeasuredKernel(
        counters=one,
        names=tuple(line.names[code] for code in codes),
        class_=line.classes[int(line.class_[longest[0]])],
        spans=len(kernel_rows),
        total_ns=int(duration.sum()),
        rows=tuple(longest.tolist()),
    )


def unabridged_name(name: str) -> str:
    """The name without what it returns and without namespaces that have no name.

    >>> (unabridged_name("void at::<unnamed>::softmax<float>(int)"),
    ...  unabridged_name("void at::(anonymous namespace)::softmax<float>(int)"),)
    ('at::softmax<float>(int)', 'at::softmax<float>(int)')
    """
    return _UNNAMED.sub("", _RETURNS.sub("", name.split(" [", 1)[0].strip()))


def without_parameters(name: str) -> str:
    """The name up to its parameters; parentheses inside template arguments are not those.

    >>> without_parameters("void at::native::copy<(int)4, f()>(int, char*)")
    'at::native::copy<(int)4, f()>'
    """
    name, depth = unabridged_name(name), 0
    for place, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth <= 0 and place:
            return name[:place]
    return name


def function(name: str) -> str:
    """The function's own name: no namespaces, no template arguments, no parameters.

    >>> function("void at::native::copy<(int)4, a::b>(int, char*)")
    'copy'
    """
    return without_parameters(name).split("<", 1)[0].rpartition("::")[2]


LEVELS: tuple[Callable[[str], str], ...] = (unabridged_name, without_parameters, function)
