"""Turn an accelerator into a profile: needs torch, numpy and Python 3.10; of Ridgeline only `ir.kernel`.

The package runs where Ridgeline cannot be installed: `ridgeline characterize --standalone FILE.pyz` writes it as one
file.
"""
