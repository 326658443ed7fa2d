"""Names that the workbench offers."""

from ridgeline.web.blocks import PageView as PageView
from ridgeline.web.guard import AccessPolicy as AccessPolicy
from ridgeline.web.server import OpenWorkbench as OpenWorkbench
from ridgeline.web.server import serve_workbench as serve_workbench
from ridgeline.web.state import PageState as PageState
from ridgeline.web.state import read_state as read_state
from ridgeline.web.views.pages import PAGES as PAGES
from ridgeline.web.views.pages import page_view as page_view
