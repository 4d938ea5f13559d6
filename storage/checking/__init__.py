"""Whether the tables are whole and hold what the offsets promise; what is not is set aside or mended."""
