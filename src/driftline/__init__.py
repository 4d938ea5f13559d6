"""Driftline: metrics, checkpoints and evaluations of model training as one replayable stream.

``import driftline`` is cheap: the SDK loads at the first use of :func:`init`.
"""
