"""Turn measured rows into scenarios and seconds, so that predictions can be fitted and validated."""
