"""Detectors: they score closed panes, arrivals and silence, then learn; ``lifecycle`` makes alerts of it.

Pure: no clock, no randomness; the same calls give the same answers, after a dump and load at any point too.
"""

from driftline.streams.detectors.suite import Detectors

__all__ = ["Detectors"]
