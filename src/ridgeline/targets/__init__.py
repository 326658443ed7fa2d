"""Turn a Scenario into the files that training software reads, and such files back into a Scenario.

The verbs are `ridgeline.export(scenario, to="megatron")` and `ridgeline.import_run(path)`. A target is a module or a
package of `dialects` (their shape stands in `target`), found by its id (`registry`):

    decisions -> a target's writers -> ledger -> files          Scenario -> Export
    files -> imports -> a target's reader                       files -> Imported
"""

from __future__ import annotations

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
