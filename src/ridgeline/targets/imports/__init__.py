"""Import of strangers' launch files: shell and Python evaluators, options taken one by one, names of models."""
