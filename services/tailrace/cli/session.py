"""A command's connection to the server: made after a look whether anybody listens there, closed at its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tailrace.common.errors import UnavailableError

if TYPE_CHECKING:
    from tailrace.client.context import ClientContext

T = TypeVar("T")
CONNECT_DEADLINE_S: Final = 5.0


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work on an event loop of its own; SIGINT and SIGTERM let it tidy up.

    Raises:
        KeyboardInterrupt: after SIGINT. SystemExit: after SIGTERM.
    """
    try:
        return asyncio.run(_until_terminated(work))
    except asyncio.CancelledError:
        raise SystemExit(128 + signal.SIGTERM) from None


async def _until_terminated(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work


@contextlib.asynccontextmanager
async def connected(controller: str) -> AsyncIterator[ClientContext]:
    """A client of the server at that address.

    Raises:
        UnavailableError: nobody listens there, or something else than a controller; the client's own retries would
            wait long for a server that is not there.
        BadRequestError: the address is malformed.
    """
    from tailrace.client.context import ClientContext
    from tailrace.client.transport import GrpcTransport

    await check_reachable(controller)
    transport = GrpcTransport(controller)
    context = ClientContext(transport)
    try:
        if not await transport.wait_ready(CONNECT_DEADLINE_S):
            raise UnavailableError(f"what listens at {controller} is not a controller, or its security differs")
        yield context
    finally:
        await context.close()


async def check_reachable(controller: str) -> None:
    """Raise UnavailableError unless something listens at one of the addresses; BadRequestError for a malformed one."""
    from tailrace.client.transport import parse_controller_uri

    targets, _ = parse_controller_uri(controller)
    reason = ""
    for target in targets:
        host, _, port = target.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_DEADLINE_S):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except TimeoutError:
            reason = f"no answer within {CONNECT_DEADLINE_S:g} s"
        except socket.gaierror as error:
            reason = error.strerror or str(error)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
        else:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            return
    raise UnavailableError(f"the controller at {controller} cannot be reached: {reason}")
