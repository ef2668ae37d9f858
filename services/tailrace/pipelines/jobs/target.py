"""The stream that a job writes into (docs/spark-jobs.md#replay)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tailrace.client import BlockingClient
from tailrace.common.errors import BadRequestError, NoSuchStreamError, StreamSealedError
from tailrace.pipelines.sink.options import parse_options

if TYPE_CHECKING:
    from tailrace.client.context import ClientContext
    from tailrace.client.model import StreamName

_OF_JOBS: Final = ("controller", "stream", "value", "valueFormat", "routingKey", "query", "batch", "delivery")
"""``delivery``: a job writes each event once, and the sink's record of that says whose checkpoint a folder has."""


@dataclass(frozen=True)
class Target:
    """A stream to write into. ``options`` are further options of the sink, such as ``unresolved``."""

    controller: str
    stream: StreamName
    options: dict[str, str] = field(default_factory=dict)

    def all_options(self) -> dict[str, str]:
        """Return the sink's options with the stream. Raises BadRequestError for a wrong one, or one that jobs set."""
        ours = {name.lower() for name in _OF_JOBS}
        for name in self.options:
            if name.lower() in ours:
                raise BadRequestError(f"the sink's option {name} cannot be given: the job sets it")
        options = {**self.options, "controller": self.controller, "stream": str(self.stream)}
        parse_options(options, streaming=True)
        return options

    async def check(self, context: ClientContext) -> None:
        """Check that events can be written. Raises NoSuchStreamError, StreamSealedError, BadRequestError."""
        self.all_options()
        if not await context.controller.stream_exists(self.stream):
            raise NoSuchStreamError(f"stream {self.stream} does not exist: create it first")
        if not await context.controller.current_segments(self.stream):
            raise StreamSealedError(f"stream {self.stream} is sealed: nothing can be written into it")

    def connect_and_check(self) -> int:
        """Check the same with a client of its own, and return the stream's incarnation."""
        with BlockingClient(self.controller) as client:
            client.run(self.check(client.context))
            return client.run(client.context.controller.describe_stream(self.stream, sizes=False)).incarnation
