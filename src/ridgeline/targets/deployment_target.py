"""Turn a target that serves into the answers that a search of deployments asks of it, by what its own writer says."""

from __future__ import annotations

from dataclasses import dataclass, field

from ridgeline.core.encode import plain
from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.hardware.system import System
from ridgeline.plan.engine import ENGINES
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble
from ridgeline.search.plan_target import Untold
from ridgeline.targets.registry import SERVE, TARGETS
from ridgeline.targets.target import Lost
from ridgeline.targets.vendors import refuse_other_chips

PLAIN = "llama3-8b"
LOAD = {"kind": "serve", "arrivals": {"kind": "poisson", "rate": 1.0}, "isl": 512, "osl": 64}
TEXT = "plan.speculation.acceptance"  # a fact of the text, which no file says


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingTarget:
    """A target of `export` that serves, as a search asks it."""

    id: str
    _known: dict[str, tuple[Untold, ...]] = field(default_factory=dict)

    def engines(self, system: System) -> tuple[str, ...]:
        """Engines that the target starts on these chips.

        >>> from ridgeline.hardware.load import system
        >>> eight = system("8xh100-sxm")
        >>> serving_target("sglang").engines(eight), serving_target("dynamo").engines(eight)
        (('sglang',), ('sglang', 'tensorrt-llm', 'vllm'))
        """
        return tuple(id for id in ENGINES if ENGINES[id].serves is not None and self._starts(system, id))

    def _starts(self, system: System, engine: str) -> bool:
        probe = _probe(system, engine)
        refuse_other_chips(probe, self.id)
        try:
            return "plan.engine" not in {one.path for one in TARGETS[self.id].write(probe).lost}
        except InputError:  # Dynamo wraps some engines and refuses others
            return False

    def untold(self, scenario: Scenario) -> tuple[Untold, ...]:
        """Lost decisions of the plan that no set-up of the user's can make good.

        >>> import ridgeline
        >>> pools = [{"role": "prefill", "tp": 2}, {"role": "decode", "tp": 2}]
        >>> made = ridgeline.scenario({"model": PLAIN, "system": "8xh100-sxm", "workload": LOAD,
        ...     "plan": {"engine": "vllm", "tp": 2, "serving": {"pools": pools}}})
        >>> {one.path for one in serving_target("vllm").untold(made)} >= {"plan.serving.pools.0.role"}
        True
        >>> serving_target("dynamo").untold(made)
        ()
        """
        key = f"{scenario.model.id} {scenario.system.name} {scenario.plan}"
        if key not in self._known:
            try:
                lost = TARGETS[self.id].write(scenario).lost
            except InputError as wrong:
                lost = tuple(Lost(path=one.path, value=one.given, why=one.expected) for one in wrong.problems)
            self._known[key] = tuple(
                Untold(path=one.path, value=str(plain(one.value)), why=one.why)
                for one in lost
                if one.path.startswith("plan.") and one.path != TEXT and not one.yours
            )
        return self._known[key]


def serving_target(id: str) -> ServingTarget:
    """The target of that id, or an `InputError` with those that serve."""
    if id not in SERVE:
        raise InputError(not_among("--to", id, SERVE, "the others train: leave --serve out"))
    return ServingTarget(id=id)


def _probe(system: System, engine: str) -> Scenario:
    """A plain deployment on a system, under an engine."""
    plan = {"engine": engine, "dp": system.chips}
    built, problems = assemble({"model": PLAIN, "system": system, "workload": LOAD, "plan": plan})
    if built is None:
        raise InputError(problems or [Problem(path="system", given=system.name, expected="a system")])
    return built
