"""Judge the API calls that mindstudio-probe (msprobe) dumped on another machine, an Ascend one usually.

The modules, each importing only those before it:

    dump             the folder: dump.json, construct.json, stack.json, into calls with notes of their tensors
    tensor_files     a tensor's file, .pt or .npy, read without running anything in it
    functions        APIs that are replayed, by name, and nothing else
    replay           a call whose tensors are there, against its contract
    statistics       a call of which only max, min, mean and norm are known, against what they may be
    imported         all calls of a folder
"""
