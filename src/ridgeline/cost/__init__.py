"""Op x chip -> seconds: a few named physical rates, and how ops are priced with them."""
