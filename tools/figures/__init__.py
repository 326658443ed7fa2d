"""Programs that write figures which need a long run, other data or a browser."""
