"""MaxText: a YAML file of what differs from its base.yml, and such files or launch scripts read back."""
