"""Scenario -> Program: what one rank executes, before anybody asks how long it takes."""
