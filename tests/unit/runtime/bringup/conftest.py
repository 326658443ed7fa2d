"""The fake device is made known before any test runs a backward: autograd counts devices once."""

from __future__ import annotations

import contextlib

with contextlib.suppress(ImportError):
    from ridgeline.runtime.bringup import fake_device

    fake_device.register()
