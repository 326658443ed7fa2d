"""Turn a Scenario into the files that training software reads, and such files back into a Scenario.

The verbs are functions of `api`: `ridgeline.export(scenario, to="megatron")` and `ridgeline.import_run(path)`. A target
is a package of one shape (`target`), found by its id (`registry`):

    decisions -> a target's writers -> ledger -> files          Scenario -> Export
    files -> shell_eval, option_reader -> a target's reader     files -> Imported
"""
