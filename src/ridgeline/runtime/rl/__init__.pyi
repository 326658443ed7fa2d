"""Names of post-training here that others use."""

from ridgeline.runtime.rl.refuse_rl import rl_refusals as rl_refusals
from ridgeline.runtime.rl.request import RlOutcome as RlOutcome
from ridgeline.runtime.rl.request import RlStepRow as RlStepRow
from ridgeline.runtime.rl.run_rl import run_post_training as run_post_training
