"""Turn a DeploymentAnswer into what `ridgeline plan` prints of a deployment."""

from __future__ import annotations

from ridgeline.core.records import dataclass
from ridgeline.plan.scenario import Scenario, serving
from ridgeline.plan.serve import Serve
from ridgeline.search.deployment.candidate import Verified
from ridgeline.search.deployment.explain import Explained
from ridgeline.search.deployment.find_deployment import DeploymentSearch
from ridgeline.search.deployment.recommend import DeploymentAnswer
from ridgeline.search.report import SearchTime


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentReport:
    """The deployment that is recommended, what limits it, and what else was found.

    asked_rate   requests per second
    others       further deployments that were simulated as a whole
    breaks       the limit that is missed first when the rate rises, by pool
    in_flight    requests that a replica decodes at once, on average
    step_s       seconds of such a decode step by part
    knobs        the best replica that decides one thing otherwise, by axis
    frontier     cost per million output tokens against tokens per second of a user
    bounded      replicas whose best case was computed
    simulated    replicas that were simulated
    trials       simulations of them
    """

    found: DeploymentAnswer
    search: DeploymentSearch
    best: Verified
    why: Explained
    time: SearchTime

    JSON = """
        kind='deployment' possible=true model=scenario.model.id system=scenario.system.name
        engine=scenario.plan.engine goal=found.goal requests asked_rate=search.rate mean_prompt_tokens
        mean_output_tokens percentile=scenario.workload.objective.percentile deployment=best others
        breaks=why.breaks in_flight=why.in_flight step_s=why.step knobs=why.knobs frontier=found.frontier bounded
        simulated trials complete=found.complete seconds=time.seconds cpu_seconds=time.cpu_seconds assumptions
        to?=found.request.target.id
    """

    @property
    def scenario(self) -> Scenario[Serve]:
        return serving(self.search.scenario)

    @property
    def requests(self) -> int:
        return len(self.search.load.requests)

    @property
    def mean_prompt_tokens(self) -> float:
        return float(self.search.load.prompts.mean())

    @property
    def mean_output_tokens(self) -> float:
        return float(self.search.load.outputs.mean())

    @property
    def searches(self) -> list[DeploymentSearch]:
        """The searches of all systems."""
        return [outcome.search for outcome in self.found.outcomes]

    @property
    def others(self) -> list[Verified]:
        same = [candidate for candidate in self.search.verified if candidate is not self.best]
        return same + [search.best for search in self.searches if search is not self.search and search.best is not None]

    @property
    def bounded(self) -> int:
        return sum(len(search.bounds) for search in self.searches)

    @property
    def simulated(self) -> int:
        return sum(len(search.capacities) for search in self.searches)

    @property
    def trials(self) -> int:
        return sum(search.bench.trials for search in self.searches)

    @property
    def assumptions(self) -> list[str]:
        return [note for note in self.best.prediction.assumptions if not note.startswith("precision = ")]


def deployment_report(found: DeploymentAnswer, time: SearchTime) -> DeploymentReport:
    """What was found, where a deployment is recommended."""
    assert found.chosen is not None
    assert found.best is not None
    assert found.why is not None
    return DeploymentReport(found=found, search=found.chosen.search, best=found.best, why=found.why, time=time)
