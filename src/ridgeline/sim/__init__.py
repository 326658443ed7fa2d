"""Turn a priced program into time: when each step of a pipeline starts, ends and waits."""
