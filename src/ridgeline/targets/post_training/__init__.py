"""Plans of post-training as files of the software that runs it, and such files read back."""
