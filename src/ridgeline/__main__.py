"""`python -m ridgeline` is `ridgeline`."""

from ridgeline.cli.entry import main

if __name__ == "__main__":
    main()
