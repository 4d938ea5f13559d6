"""Collects the outputs of one input record and gives each its id."""

from __future__ import annotations

from driftline import events
from driftline.events import EvalOutcome
from driftline.records import Output, OutputId
from driftline.streams.scheduler.state import ActiveLease, Asker, Request
from driftline.topics import TopicName


class Outbox:
    """Outputs caused by the record at one offset, in order."""

    def __init__(self, topic_uuid: str, partition: int, offset: int) -> None:
        self.offset = offset
        self.sent: list[Output] = []
        self._topic_uuid = topic_uuid
        self._partition = partition

    def lease(self, request: Request, active: ActiveLease) -> None:
        """To the evaluators: this one works on that. A retry reads the files of the next run that asked."""
        asker = request.askers[(request.tries - 1) % len(request.askers)]
        id_ = self._id()
        event = events.Lease(
            id=str(id_),
            lease=active.lease,
            request=request.request,
            evaluator=active.evaluator,
            tried=request.tries,
            run=asker.run,
            suite=request.suite,
            checkpoint=asker.checkpoint,
            expires_us=active.expires_us,
        )
        self._send("assignments", asker.run, event, id_)

    def closed(self, request: Request, lease: str, status: events.EvalStatus) -> None:
        """To the evaluators: no more work on this."""
        id_ = self._id()
        event = events.RequestClosed(id=str(id_), request=request.request, lease=lease, status=status)
        self._send("assignments", request.askers[0].run, event, id_)

    def accepted(
        self,
        asker: Asker,
        *,
        request: str,
        suite: events.SuiteRef,
        evaluator: str,
        lease: str,
        tries: int,
        now_us: int,
        outcome: EvalOutcome,
    ) -> None:
        """To the log of a run that asked: its result."""
        id_ = self._id()
        event = events.EvalAccepted(
            id=str(id_),
            request=request,
            run=asker.run,
            attempt=asker.attempt,
            suite=suite,
            checkpoint=asker.checkpoint,
            reason=asker.reason,
            evaluator=evaluator,
            lease=lease,
            tries=tries,
            requested_us=asker.requested_us,
            accepted_us=now_us,
            outcome=outcome,
        )
        self._send("telemetry", asker.run, event, id_)

    def dead(self, value: bytes | None, reason: str, time_us: int) -> None:
        """To the dead letters: a record that could not be used."""
        body = value or b""
        event = events.DeadLetter(
            topic="evals",
            partition=self._partition,
            offset=self.offset,
            reason=reason,
            reader="scheduler",
            time_us=time_us,
            value=body[:65_536],
            size=len(body),
        )
        self._send("dead-letter", "", event, self._id())

    def _id(self) -> OutputId:
        return OutputId(self._topic_uuid, self._partition, self.offset, len(self.sent))

    def _send(self, topic: TopicName, run: str, event: events.Event, id_: OutputId) -> None:
        self.sent.append(Output(topic, run, events.encode(event), id_))
