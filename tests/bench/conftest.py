"""`bench` is not installed, it stands at the root; a bare `pytest` does not look there."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
