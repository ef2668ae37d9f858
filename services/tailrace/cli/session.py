"""Connect a command to the server, after a check that a controller listens there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tailrace.cli.output import note
from tailrace.common.errors import UnavailableError

if TYPE_CHECKING:
    from tailrace.client.context import ClientContext

T = TypeVar("T")
CONNECT_DEADLINE_S: Final = 5.0
TIDY_UP_DEADLINE_S: Final = 5.0


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work on its own event loop; SIGINT, SIGTERM and SIGHUP cancel it and let it clean up.

    Raises:
        KeyboardInterrupt: after SIGINT. SystemExit: after SIGTERM and SIGHUP.
    """
    ended: list[signal.Signals] = []
    try:
        return asyncio.run(_until_ended(work, ended))
    except asyncio.CancelledError:
        raise SystemExit(128 + ended[0]) from None


async def _until_ended(work: Coroutine[Any, Any, T], ended: list[signal.Signals]) -> T:
    cancel_on((signal.SIGTERM, signal.SIGHUP), ended)
    return await work


def cancel_on(signals: Iterable[signal.Signals], ended: list[signal.Signals]) -> None:
    """Let signals cancel the running task, and append the signal to `ended`. Ignored signals (nohup) stay ignored."""
    task = asyncio.current_task()
    assert task is not None
    cancel = task.cancel

    def end(number: signal.Signals) -> None:
        ended.append(number)
        cancel()

    for number in signals:
        if signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, end, number)


async def tidy_up(work: Coroutine[Any, Any, None], *, deadline_s: float = TIDY_UP_DEADLINE_S, else_: str = "") -> None:
    """Clean up at a command's end, within a short deadline because the server may be gone.

    `else_` is printed when the cleanup failed. Without it a failed cleanup is harmless.
    """
    try:
        async with asyncio.timeout(deadline_s):
            await work
    except TimeoutError:
        if else_:
            note(f"tailrace: the server did not answer within {deadline_s:g} s: {else_}")


@contextlib.asynccontextmanager
async def connected(controller: str) -> AsyncIterator[ClientContext]:
    """Connect to the server at that address.

    Raises:
        UnavailableError: no controller listens there. The client's own retries would wait much longer.
        BadRequestError: the address is malformed.
    """
    from tailrace.client.context import ClientContext
    from tailrace.client.control.transport import GrpcTransport
    from tailrace.common.logs import configure_notes

    configure_notes()
    await check_reachable(controller)
    transport = GrpcTransport(controller)
    context = ClientContext(transport)
    try:
        if not await transport.wait_ready(CONNECT_DEADLINE_S):
            raise UnavailableError(f"the server at {controller} is not a controller, or its TLS settings differ")
        yield context
    finally:
        await context.close()


async def check_reachable(controller: str) -> None:
    """Raise UnavailableError unless a server listens at an address; BadRequestError for a malformed address."""
    from tailrace.client.control.transport import parse_controller_uri

    targets, _ = parse_controller_uri(controller)
    reason = ""
    for target in targets:
        host, _, port = target.rpartition(":")
        reason = await why_unreachable(host.strip("[]"), int(port))
        if not reason:
            return
    raise UnavailableError(f"the controller at {controller} cannot be reached: {reason}")


async def why_unreachable(host: str, port: int) -> str:
    """Return why no connection to an address can be made; empty when one can."""
    try:
        async with asyncio.timeout(CONNECT_DEADLINE_S):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return f"no reply within {CONNECT_DEADLINE_S:g} s"
    except socket.gaierror as error:
        return error.strerror or str(error)
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""
