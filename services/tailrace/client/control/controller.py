"""Join all calls of the controller in one client.

See docs/protocol/controller.md#errors, docs/protocol/controller.md#calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.client.control.groups import ReaderGroupCalls
from tailrace.client.control.history import HistoryCalls
from tailrace.client.control.owners import OwnerCalls
from tailrace.client.control.segments import SegmentCalls
from tailrace.client.control.streams import ScopeCalls, StreamCalls
from tailrace.client.control.tables import KeyValueTableCalls
from tailrace.client.control.transactions import TransactionCalls
from tailrace.client.control.transport import ControllerTransport, GrpcTransport
from tailrace.common import limits

if TYPE_CHECKING:
    from tailrace.common.ports import Entropy


class ControllerClient(
    ScopeCalls,
    StreamCalls,
    SegmentCalls,
    TransactionCalls,
    ReaderGroupCalls,
    KeyValueTableCalls,
    OwnerCalls,
    HistoryCalls,
):
    """All calls of the controller.

    ``controller`` is an address (``tcp://HOST:PORT``, several separated by commas, ``tls://`` for TLS) or a transport.
    Calls raise kinds of NotFoundError, BadRequestError for wrong arguments, UnauthenticatedError,
    PermissionDeniedError, and UnavailableError or DeadlineError when all retries failed.
    """

    def __init__(
        self,
        controller: str | ControllerTransport,
        *,
        entropy: Entropy | None = None,
        deadline_s: float = limits.CLIENT_CONTROLLER_CALL_DEADLINE_S,
    ) -> None:
        transport = GrpcTransport(controller) if isinstance(controller, str) else controller
        super().__init__(transport, entropy=entropy, deadline_s=deadline_s)
