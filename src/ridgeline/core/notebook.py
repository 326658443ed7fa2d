"""What a value has that shows itself in a notebook: the app draws it where it is asked to."""

from __future__ import annotations

from importlib import import_module


class NotebookValue:
    """A value that a notebook shows as a page rather than as a line of text; `report.notebook` says how."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Markup of the value, without script, safe inside any page."""
        return str(import_module("ridgeline.report.notebook").notebook_markup(self))
