"""Decisions as data: mesh, plan, workload, scenario, schedules."""
