from ridgeline.search.deployment.comparison import ComparedDeployment as ComparedDeployment
from ridgeline.search.deployment.explain import FrontierPoint as FrontierPoint
from ridgeline.search.deployment.promise import ServedIntervals as ServedIntervals
from ridgeline.search.deployment.promise import served_intervals as served_intervals
from ridgeline.search.deployment.recommendation import DeploymentAnswer as DeploymentAnswer
from ridgeline.search.deployment.recommendation import DeploymentReport as DeploymentReport
from ridgeline.search.deployment.recommendation import recommend_deployment as recommend_deployment
from ridgeline.search.deployment.request import DeploymentOptions as DeploymentOptions
from ridgeline.search.deployment.request import DeploymentRequest as DeploymentRequest
from ridgeline.search.progress import Progress as Progress
from ridgeline.search.progress import Watch as Watch
from ridgeline.search.recommendation import SearchTime as SearchTime
from ridgeline.search.training.comparison import ComparedSystem as ComparedSystem
from ridgeline.search.training.comparison import SystemPlan as SystemPlan
from ridgeline.search.training.explain import GivenPlan as GivenPlan
from ridgeline.search.training.explain import Loss as Loss
from ridgeline.search.training.explain import PlanExplanation as PlanExplanation
from ridgeline.search.training.plan_search import find_plan
from ridgeline.search.training.plan_search import fit_to as fit_to
from ridgeline.search.training.recommendation import NoPlan as NoPlan
from ridgeline.search.training.recommendation import PlanReport as PlanReport
from ridgeline.search.training.recommendation import PricedPlan as PricedPlan
from ridgeline.search.training.recommendation import Recommendation as Recommendation
from ridgeline.search.training.recommendation import RecommendedPlan as RecommendedPlan
from ridgeline.search.training.recommendation import RefinedPlan as RefinedPlan
from ridgeline.search.training.recommendation import recommend as recommend
from ridgeline.search.training.request import PlanOptions as PlanOptions
from ridgeline.search.training.request import PlanRequest as PlanRequest
from ridgeline.search.training.request import one_scenario as one_scenario

best_plans = find_plan
