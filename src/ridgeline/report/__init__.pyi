"""Names that the room of pages offers."""

from ridgeline.report.accuracy import checkout as checkout
from ridgeline.report.accuracy import figures_table as figures_table
from ridgeline.report.accuracy import stale_tables as stale_tables
from ridgeline.report.accuracy import write_current as write_current
from ridgeline.report.accuracy import write_tables as write_tables
from ridgeline.report.catalog import CheckedScenario as CheckedScenario
from ridgeline.report.catalog import Detail as Detail
from ridgeline.report.catalog import ScenarioEntry as ScenarioEntry
from ridgeline.report.catalog import model_entry as model_entry
from ridgeline.report.catalog_tables import draw_entries as draw_entries
from ridgeline.report.drawing import refuse_picture as refuse_picture
from ridgeline.report.perfetto import page_files as page_files
from ridgeline.report.perfetto import serve_trace as serve_trace
from ridgeline.report.plan import draw_best as draw_best
from ridgeline.report.plan import draw_reasons as draw_reasons
from ridgeline.report.results import draw as draw
from ridgeline.report.results import page as page
from ridgeline.report.results import verb_schema as verb_schema
from ridgeline.report.results import write_picture as write_picture
from ridgeline.report.run import step_line as step_line
from ridgeline.report.show import entries as entries
from ridgeline.report.show import known_names as known_names
from ridgeline.report.trace_html import write_trace_page as write_trace_page
from ridgeline.report.validate import fit_with_text as fit_with_text
