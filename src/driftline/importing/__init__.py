"""Import of the past: what other tools have written becomes the log that live training would have sent.

detect    paths -> sources, by what the files contain
columns   header and first rows -> how a table is read (guessed, or told)
tables, tensorboard, trainer_state, lm_eval   bytes -> items
telling   items -> records of a telemetry log (pure)
load      records -> pipeline and tables, each once
"""
