"""Names that the room of traces offers."""

from ridgeline.trace.analysis.exclusive_time import exclusive_time as exclusive_time
from ridgeline.trace.analysis.inference import Inference as Inference
from ridgeline.trace.analysis.inference import ServedModel as ServedModel
from ridgeline.trace.analysis.roofline import ClassRate as ClassRate
from ridgeline.trace.analyze_traces import Analysis as Analysis
from ridgeline.trace.analyze_traces import analyze as analyze
from ridgeline.trace.chrome_writer import write_chrome as write_chrome
from ridgeline.trace.classes import Rules as Rules
from ridgeline.trace.classes import classify as classify
from ridgeline.trace.classes import launching_ops as launching_ops
from ridgeline.trace.diff import Diff as Diff
from ridgeline.trace.diff import DiffRuns as DiffRuns
from ridgeline.trace.diff import diff_timelines as diff_timelines
from ridgeline.trace.read.kernel_counters import CounterFile as CounterFile
from ridgeline.trace.read.memory_snapshot import MemoryRecord as MemoryRecord
from ridgeline.trace.read.readers import read_timeline as read_timeline
from ridgeline.trace.read.readers import read_untimed as read_untimed
from ridgeline.trace.read.source import TraceSource as TraceSource
from ridgeline.trace.span_query import QueryAnswer as QueryAnswer
from ridgeline.trace.timeline import NO_LAYER as NO_LAYER
from ridgeline.trace.timeline import Counter as Counter
from ridgeline.trace.timeline import StepPhase as StepPhase
from ridgeline.trace.timeline import Timeline as Timeline
from ridgeline.trace.timeline import nanoseconds_of as nanoseconds_of
