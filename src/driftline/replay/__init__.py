"""Replay: a past stream through the pipeline again, to prove, to compare, to repair, to test rules."""
