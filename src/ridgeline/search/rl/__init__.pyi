"""Names that the side door for plans of post-training offers."""

from ridgeline.search.rl.recommendation import RlAnswer as RlAnswer
from ridgeline.search.rl.recommendation import RlPlanRow as RlPlanRow
from ridgeline.search.rl.recommendation import recommend_rl as recommend_rl
from ridgeline.search.rl.request import RlRequest as RlRequest
from ridgeline.search.rl.request import is_post_training_file as is_post_training_file
