"""The scheduler: which evaluator works on which request, and which result counts. Pure, over topic
``evals``.

Rules (``docs/evaluation-scheduling.md`` says them for users):

- One lease per evaluator, one evaluator per request at a time. Waiting requests: the newest first, but one
  that waits longer than ``starve_us`` goes before, the oldest of those first. Evaluators: the longest idle
  first.
- A lease is renewed by progress and lost when there was none for ``lease_us``, or its evaluator was silent
  for ``present_us``; both are judged at ticks, and a hole in the ticks counts as no time.
- The **first complete result** of a request is accepted, whatever its lease; later ones are refused and
  counted.
- After "failed", "incomplete", "unreadable" or a lost lease there are ``retries`` further tries, on another
  evaluator if there is one; then the failure is the answer. "gone" is an answer at once. A lease given back
  by an evaluator that stops in order is no try.
- The answer goes to the log of every run that asked, once per run. A complete result is kept and copied at
  once to a run that asks later; a failure is not: that run's files may be there.

Everything is bounded (``state``); the outputs' ids are made of the input's position, so a replay gives the
same bytes.
"""

from driftline.streams.scheduler.core import Scheduler
from driftline.streams.scheduler.state import State

__all__ = ["Scheduler", "State"]
