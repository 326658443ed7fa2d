"""AWS NxD Training: a YAML of NeuronX Distributed Training with the model's config.json, and such files read back."""
