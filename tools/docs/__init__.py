"""Programs that write pages and tables which `make docs` checks."""
