"""What trainers around transformers share, in writing and in reading."""
