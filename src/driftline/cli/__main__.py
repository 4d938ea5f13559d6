"""``python -m driftline.cli``: the same as ``driftline``."""

from driftline.cli import main

main()
