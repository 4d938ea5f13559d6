"""Questions of a training team and their answers: ``driftline curve``, ``compare``, ``goodput``, ...

``questions`` says what can be asked: SQL over the views of the tables, and a pure function from its rows to
an :class:`~driftline.analysis.answer.Answer` (sentences, tables, charts). ``terminal``, ``picture``, ``page``
and ``machine`` show an answer as text, PNG or SVG, HTML, and JSON or CSV. ``ask`` opens the tables.
"""
