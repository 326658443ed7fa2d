"""Judge the API calls that mindstudio-probe (msprobe) dumped on another machine, an Ascend one usually.

dump             the folder, into calls with notes of their tensors; tensors' files
statistics       a call of which only max, min, mean and norm are known, against what they may be
replay           all calls of a folder; one whose tensors are there against its contract
"""
