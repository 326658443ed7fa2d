"""The one place where the version stands."""

__version__ = "0.2.0"
SCHEMA_VERSION = 1  # of what `--json` prints: it rises when a key is renamed, removed or changes its meaning
