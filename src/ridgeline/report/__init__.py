"""What people see: sheets of facts, and how they are drawn in the terminal."""
