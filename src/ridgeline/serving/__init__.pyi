from ridgeline.serving.deployment import Instance as Instance
from ridgeline.serving.deployment import Settings as Settings
from ridgeline.serving.deployment import StepPricing as StepPricing
from ridgeline.serving.deployment import instances_of as instances_of
from ridgeline.serving.deployment import price_of as price_of
from ridgeline.serving.deployment import unservable as unservable
from ridgeline.serving.fleet import Role as Role
from ridgeline.serving.load import load_of as load_of
from ridgeline.serving.replica import Sample as Sample
from ridgeline.serving.replica import SloMissed as SloMissed
from ridgeline.serving.request import Request as Request
from ridgeline.serving.running_batch import running_batch
from ridgeline.serving.served import Served as Served
from ridgeline.serving.served import ServingMetrics as ServingMetrics
from ridgeline.serving.serving_prediction import FRONT_END_S as FRONT_END_S
from ridgeline.serving.serving_prediction import ServedTitle as ServedTitle
from ridgeline.serving.serving_prediction import ServingPrediction as ServingPrediction
from ridgeline.serving.serving_prediction import predict_serving as predict_serving
from ridgeline.serving.serving_prediction import refuse_impossible as refuse_impossible
from ridgeline.serving.serving_prediction import served_by as served_by
from ridgeline.serving.slow_requests import MEANINGS as MEANINGS
from ridgeline.serving.slow_requests import WhySlow as WhySlow
from ridgeline.serving.slow_requests import why_slow as why_slow
from ridgeline.serving.step_cost import LinearStepCost as LinearStepCost
from ridgeline.serving.step_cost import StepCost as StepCost

average_batch = running_batch
