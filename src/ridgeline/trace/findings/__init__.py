"""Turn analyses into findings: what limits the step, the spans that prove it, what changing it would gain.

finding                        what a finding is, and the facts that rules look at
communication, idle, kernels   the rules: small functions that yield findings
rules                          all of them in one tuple, and `findings`, which asks them
gains                          what a finding would gain, by replay
"""
