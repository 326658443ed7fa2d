"""Pages of the workbench: each a pure function from a PageState to a PageView."""
