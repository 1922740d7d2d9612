"""Whether the CPU kernel is here, for tests that need it: skipped without it, except in continuous integration."""

import os

import pytest

from rearview.attention.engines.native import library

IN_CI = os.environ.get("CI") == "true"

needs_native = pytest.mark.skipif(
    library.MISSING is not None and not IN_CI, reason=f"engine 'native': {library.MISSING}"
)

# The engine's name among the parameters of a test.
NATIVE = pytest.param("native", marks=needs_native)
