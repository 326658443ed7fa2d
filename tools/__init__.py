"""The programs that keep documentation and recorded data up to date; `python -m tools --help` lists them."""
