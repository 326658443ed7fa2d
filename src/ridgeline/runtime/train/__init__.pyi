"""Names of the reference engine `ridgeline` that others use."""

from ridgeline.runtime.train.launch import describe_plan as describe_plan
from ridgeline.runtime.train.refuse import refusals as refusals
from ridgeline.runtime.train.request import ForwardConstants as ForwardConstants
from ridgeline.runtime.train.request import RunMemory as RunMemory
from ridgeline.runtime.train.request import RunOptions as RunOptions
from ridgeline.runtime.train.request import RunOutcome as RunOutcome
from ridgeline.runtime.train.request import SbatchScript as SbatchScript
from ridgeline.runtime.train.request import StepRow as StepRow
from ridgeline.runtime.train.request import Verification as Verification
from ridgeline.runtime.train.run_scenario import run as run
from ridgeline.runtime.train.run_scenario import trace_plan as trace_plan
from ridgeline.runtime.train.token_files import Packed as Packed
from ridgeline.runtime.train.token_files import pack as pack
