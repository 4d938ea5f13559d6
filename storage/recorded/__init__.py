"""The input log back from the tables, and what was stored of its outputs: what replays rest on."""
