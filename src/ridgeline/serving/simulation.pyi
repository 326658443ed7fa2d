from ridgeline.serving.batch_steps import ClosedBatch as ClosedBatch
from ridgeline.serving.batch_steps import Limits as Limits
from ridgeline.serving.batch_steps import closed_batch as closed_batch
from ridgeline.serving.engine.vllm import VllmScheduler as VllmScheduler
from ridgeline.serving.engine.vllm import VllmSettings as VllmSettings
from ridgeline.serving.engine.vllm import vllm_rules as vllm_rules
from ridgeline.serving.fleet import collector_paused as collector_paused
from ridgeline.serving.fleet import settled_heap as settled_heap
from ridgeline.serving.load import closed_loop as closed_loop
from ridgeline.serving.replica import replica_of as replica_of
from ridgeline.serving.request import Piece as Piece
from ridgeline.serving.request import plain_request as plain_request
from ridgeline.serving.running_batch import RunningBatch as RunningBatch
from ridgeline.serving.running_batch import running_batch as running_batch
from ridgeline.serving.step_cost import ScaledStepCost as ScaledStepCost
from ridgeline.serving.running_batch import running_batch

average_batch = running_batch
