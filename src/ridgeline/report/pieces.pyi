"""Pieces of pages that the workbench shares."""

from ridgeline.report.catalog import chip_numbers as chip_numbers
from ridgeline.report.chart import Chart as Chart
from ridgeline.report.chart import ChartAxis as ChartAxis
from ridgeline.report.chart import ChartDot as ChartDot
from ridgeline.report.chart import Curve as Curve
from ridgeline.report.chart import chart_svg as chart_svg
from ridgeline.report.chart import seconds_axis as seconds_axis
from ridgeline.report.html import page_style as page_style
from ridgeline.report.html import picture_style as picture_style
from ridgeline.report.perfetto import KINDS as KINDS
from ridgeline.report.perfetto import POLICY as POLICY
from ridgeline.report.perfetto import page_files as page_files
from ridgeline.report.plan_html import frontier_caption as frontier_caption
from ridgeline.report.plan_html import frontier_chart as frontier_chart
from ridgeline.report.results import terminal_text as terminal_text
from ridgeline.report.roofline_html import STYLE as STYLE
from ridgeline.report.roofline_html import svg
from ridgeline.report.skeleton import interval_words as interval_words
from ridgeline.report.skeleton import prediction_evidence as prediction_evidence

roofline_svg = svg
