"""One module or package for each software that is written for, or read."""
