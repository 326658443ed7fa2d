"""verl: a Hydra file for the actor's update, and such files or the overrides of launch scripts read back."""
