"""Programs that record what other software accepts, and the longest paths of pipeline schedules."""
