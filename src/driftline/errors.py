"""What can go wrong, sorted by what the reader does next.

    DriftlineError
    |-- SettingsError   the settings are wrong: mend the named key            (exit code 2)
    |-- BadRecord       a record does not say what it must: dead letter, go on
    |-- Unavailable     broker, file or device is away: wait and retry
    |   `-- Refused     the broker is there and does not let us in: mend the named key, or its rights
    `-- BadData         stored or given data is broken: stop, show where      (exit code 1)

A broken invariant is an ``assert``, never one of these. A message says what, where and the remedy.
Foreign exceptions are wrapped where they enter. All can be pickled, to come from another process.
"""

from __future__ import annotations

from typing import Any


class DriftlineError(Exception):
    """Base of every error that driftline raises on purpose."""


class SettingsError(DriftlineError):
    """A setting is wrong: names the key, the value and the remedy."""

    def __init__(self, key: str, value: object, remedy: str) -> None:
        super().__init__(f"{key}: {value!r} is not usable: {remedy}" if key else remedy)
        self.key = key
        self.value = value
        self.remedy = remedy

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.key, self.value, self.remedy)


class BadRecord(DriftlineError):
    """A record that cannot be decoded or breaks its format: goes to the dead-letter topic."""


class Unavailable(DriftlineError):
    """Something outside is not there now: try again later."""


class Refused(Unavailable):
    """The broker is there and does not let us in as the settings say: names the key, the value, the remedy.

    A role that has never reached the broker ends with it (exit code 2): waiting cannot help. Once it was let
    in it waits, since a broker in trouble refuses for other reasons too.
    """

    def __init__(self, key: str, value: object, remedy: str) -> None:
        super().__init__(f"{key}: {value!r} is not usable: {remedy}")
        self.key = key
        self.value = value
        self.remedy = remedy

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.key, self.value, self.remedy)

    def at_start(self) -> SettingsError:
        """The same as what ends a role that has never reached the broker."""
        return SettingsError(self.key, self.value, self.remedy)


class BadData(DriftlineError):
    """Data on disk or from a user is broken: says which and where."""
