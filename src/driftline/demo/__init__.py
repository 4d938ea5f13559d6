"""The demonstration: a real training of four ranks, with all parts of Driftline at work on it."""
