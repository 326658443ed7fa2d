"""Ridgeline: where model meets machine.

    describe -> predict -> plan -> run -> observe -> explain -> calibrate

The names below are loaded when first used, so that importing Ridgeline costs nothing.

    chip, system, model, engine, schedule      one entry by id, name, file or table
    CHIPS, SYSTEMS, MODELS, ENGINES, SCHEDULES everything the catalogs hold
    scenario, read_scenario                    a table or a file -> Scenario
    scenario_of                                a file, or a model with a system and settings -> Scenario
    check                                      Scenario -> the reasons why it cannot run
    show                                       names -> sheets of facts, as `ridgeline show --json` prints them
    schema                                     the JSON schema of scenario files
    predict                                    Scenario -> Prediction, ServingPrediction of requests under load, or
                                               Impossible with its reasons
    why_slow                                   ServingPrediction -> WhySlow: why its slow requests are slow, what helps
    estimate                                   Scenario -> every op of a rank with seconds, bound and evidence
    roofline                                   model, chip -> Roofline: every op under the chip's roofs
    graph                                      model, chip -> GraphReport: every op of a step, and what could be fused
    sense                                      Scenario -> SensitivityAnswer: what limits it, and what 1 % is worth
    design                                     study file -> DesignAnswer, the machines that no other beats; or
                                               ArchitectureAnswer, the models of equal quality
    report                                     study file -> RequirementReport: what is asked of which team
    profile                                    files of measured kernels -> Profile, several nodes as one
    read_profile                               a file of `ridgeline characterize` -> Profile
    profile_report                             Profile -> ProfileReport: its ceilings, and which chips are slow
    timeline                                   Scenario -> Timeline of one predicted step
    plan                                       model, options -> Recommendation; with serve=True DeploymentAnswer: what
                                               `ridgeline plan` prints and writes
    recommend                                  PlanRequest -> Recommendation: the same for a question that is a value
    find_plan                                  Scenario -> Search: the best plans of its space
    validate                                   measured runs -> Validation: each beside its prediction; LogFit of a
                                               log of requests, Replay of recorded decisions
    fit                                        measured runs -> Refit: parameters, and what they are worth
    export                                     Scenario -> Export: a target's files, and what it cannot express
    import_run                                 a run's configuration -> Imported: settings that `scenario` takes
    scenario_text                              Imported -> the scenario file that it means
    read_timeline                              trace files -> Timeline, whatever wrote them
    served_model                               model, TP -> ServedModel: the sizes that `analyze` prices graphs by
    analyze                                    traces -> Analysis: where the time went, under a stated policy
    query                                      traces, SQL -> QueryAnswer: their spans as a table
    diff                                       two traces or scenarios -> Diff: causes that sum to the difference; so
                                               profiles and reports of bringup
    explain                                    Scenario, trace -> Explanation: what accounts for the gap; requests under
                                               load -> WhySlow, results of a load generator -> BenchExplanation
    characterize                               a torch device -> Characterization: its profile, measured and written
    preflight                                  ranks of torchrun -> Preflight: slow chips, slow links, wrong settings
    doctor                                     -> Doctor: what is installed here, and what verbs would need
    pack                                       documents -> Packed: a file of tokens that a run reads
    run                                        Scenario -> RunOutcome: trained here by its plan; or its Verification
    write_sbatch                               scenario file, RunOptions -> a script of Slurm that runs it
    capture                                    torch module, example inputs -> ModelSpec: one forward, recorded
    bringup                                    ModelSpec, device -> BringUp: every op of it there, judged against fp64
    dry_run                                    Scenario -> DryRun: its step traced without its ranks, op by op
    anchored                                   your measured runs -> Calibration: yours, that `predict` takes
    next_measurements                          Scenario -> what to measure to be surer of it, the best first
    open                                       files -> the workbench in a browser of this machine, until Ctrl-C
    collective                                 name, system or topology -> CollectiveTime: algorithm, bound, four prices
    collective_list                            system or topology -> AlgorithmList: what its algorithms take there
    collective_verify                          file -> CollectiveFile; with a network CollectiveTime
    library_choice                             name, system -> LibraryChoice: what NCCL, RCCL or HCCL would do, and why
    collective_run                             name, ranks, backend -> CollectiveRun: an algorithm as it ran
    fit_with                                   your measured runs -> OwnFit: that calibration, and what it is worth
"""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
