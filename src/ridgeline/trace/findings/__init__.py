"""Turn analyses into findings: what limits the step, the spans that prove it, what changing it would gain.

finding                        what a finding is, the facts that rules look at, what a change gains, by replay
communication, idle, kernels   the rules: small functions that yield findings
rules                          all of them in one tuple, and `findings`, which asks them
"""
