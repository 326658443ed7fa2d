"""Scenario -> one step, event by event, and its Timeline: stream work, shared links, the schedule's table executed."""
