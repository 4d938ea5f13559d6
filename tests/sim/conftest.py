"""The simulation is a package of its own beside its tests; ``SIM_SEED=42 pytest tests/sim`` replays a
seed."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
