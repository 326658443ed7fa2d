"""Files of collective algorithms that libraries execute: read, checked, verified, written."""
