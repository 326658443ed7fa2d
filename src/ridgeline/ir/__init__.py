"""What one rank executes, as data: ops and the program they make."""
