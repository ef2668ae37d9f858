"""What an endpoint that is no object store, or a hostile one, may do to the operator: nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from harness.streamserver import stream_server
from tailrace.cluster.cluster_identity import ClusterIdentity
from tailrace.common import limits
from tailrace.common.errors import UnavailableError
from tailrace_operator.cluster.tier2 import Credentials, MinioProbe, Tier2Error
from tailrace_operator.schema.specs import Tier2Spec

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]
CREDENTIALS = Credentials("key", "secret")
MARK = b'{"format": 1, "cluster": "c", "containers": 4}'


@contextlib.asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[Tier2Spec]:
    """An endpoint that answers so."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await answer(writer)

    async with stream_server(serve) as server:
        host, port = server.address
        yield Tier2Spec("data", f"http://{host}:{port}", "minio", "streams")


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(limits, "TIER2_CHECK_DEADLINE_S", 60.0)
    probe = MinioProbe()
    yield probe
    probe.close()


async def ended(look: Awaitable[Any]) -> str:
    """The reason of a check that fails."""
    with pytest.raises(Tier2Error) as caught:
        await look
    return caught.value.reason


SHORT_S = 0.5
"""The deadline where an endpoint lets it pass."""


def whole(status: str, body: bytes, content_type: str = "application/xml") -> Answer:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(head.encode() + body)
        await writer.drain()

    return answer


async def refusal(probe: MinioProbe, answer: Answer) -> Tier2Error:
    async with serving(answer) as tier2:
        with pytest.raises(Tier2Error) as caught:
            await probe.look(tier2, CREDENTIALS)
        return caught.value


async def test_an_object_store_is_understood(probe: MinioProbe) -> None:
    async with serving(whole("200 OK", MARK)) as tier2:
        assert await probe.look(tier2, CREDENTIALS) == ClusterIdentity("c", 4)
    missing = b"<Error><Code>NoSuchKey</Code></Error>"
    async with serving(whole("404 Not Found", missing)) as tier2:
        assert await probe.look(tier2, CREDENTIALS) is None


async def test_a_bucket_is_made_only_for_who_wants_that(probe: MinioProbe) -> None:
    """A missing one of a cluster with data is no new bucket: its data is missing."""
    missing = whole("404 Not Found", b"<Error><Code>NoSuchBucket</Code></Error>")
    asked = 0

    async def answer(writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await missing(writer)

    async with serving(answer) as tier2:
        assert await probe.look(tier2, CREDENTIALS, creates_bucket=False) is None
        assert asked == 1
        with pytest.raises(Tier2Error):
            await probe.look(tier2, CREDENTIALS)  # this store refuses to make it


async def test_what_another_server_answers_is_not_repeated(probe: MinioProbe) -> None:
    """Otherwise a user who may create a StreamCluster could read what only the operator can reach."""
    error = await refusal(probe, whole("404 Not Found", b"token=hidden", "text/plain"))
    assert error.reason == "StoreFails"
    assert "404" in str(error)
    assert "hidden" not in str(error)
    coded = await refusal(probe, whole("400 Bad Request", b"<Error><Code>hidden one\nand two</Code></Error>"))
    assert "hidden" not in str(coded)


async def test_a_signature_for_another_region_names_the_region(probe: MinioProbe) -> None:
    """AWS answers so when the resource has no region; right credentials are no cure."""
    wrong = b"<Error><Code>AuthorizationHeaderMalformed</Code><Message>the region is wrong</Message></Error>"
    error = await refusal(probe, whole("400 Bad Request", wrong))
    assert error.reason == "CredentialsWrong"
    assert str(error).startswith("spec.tier2.region: ")
    assert "us-east-1" in str(error)


@pytest.mark.parametrize("body", [b"<Error", b"\xff\xfe<", b"<Error>&x;</Error>"])
async def test_an_unreadable_mark_is_reported_as_such(probe: MinioProbe, body: bytes) -> None:
    assert (await refusal(probe, whole("400 Bad Request", body))).reason == "StoreFails"


async def test_an_answer_without_an_end_is_cut_off(probe: MinioProbe) -> None:
    sent = 0

    async def answer(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 500 Oh\r\nContent-Type: text/plain\r\n\r\n")
        while True:
            writer.write(bytes(limits.MIB))
            await writer.drain()
            sent += 1

    error = await refusal(probe, answer)
    assert error.reason == "EndpointUnreachable"
    assert sent < 64, "more than sockets buffer was taken"


async def test_endpoints_that_dawdle_do_not_keep_others_waiting(
    probe: MinioProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dawdle(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"X-Wait: a\r\n"[:1])
            await writer.drain()
            await asyncio.sleep(0.05)

    async with serving(dawdle) as slow, serving(whole("200 OK", MARK)) as good:
        with monkeypatch.context() as patch:
            patch.setattr(limits, "TIER2_CHECK_DEADLINE_S", SHORT_S)
            looks = [probe.look(slow, CREDENTIALS) for _ in range(limits.TIER2_CHECK_THREADS)]
            refused = await asyncio.gather(*looks, return_exceptions=True)
        assert {error.reason for error in refused if isinstance(error, Tier2Error)} == {"EndpointUnreachable"}
        assert await probe.look(good, CREDENTIALS) == ClusterIdentity("c", 4)


async def test_endpoints_that_do_not_answer_make_no_other_one_wait(probe: MinioProbe) -> None:
    """As many of them as all workers of Pipelines ask at a time."""
    reached = asyncio.Semaphore(0)

    async def hang(writer: asyncio.StreamWriter) -> None:
        reached.release()
        await asyncio.Event().wait()

    async with contextlib.AsyncExitStack() as servers:
        places = [await servers.enter_async_context(serving(hang)) for _ in range(limits.OPERATOR_WORKERS)]
        good = await servers.enter_async_context(serving(whole("200 OK", MARK)))
        async with asyncio.TaskGroup() as group:
            slow = [group.create_task(ended(probe.look(place, CREDENTIALS))) for place in places]
            for _ in slow:
                await reached.acquire()
            found = await probe.look(good, CREDENTIALS)
            assert not any(one.done() for one in slow), "they waited for each other"
            await servers.aclose()
    assert found == ClusterIdentity("c", 4)
    assert {one.result() for one in slow} == {"EndpointUnreachable"}


async def test_a_check_that_is_not_begun_says_nothing_of_its_endpoint(
    probe: MinioProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, let_go = asyncio.Semaphore(0), asyncio.Event()

    async def hang(writer: asyncio.StreamWriter) -> None:
        reached.release()
        await let_go.wait()
        await whole("200 OK", MARK)(writer)

    monkeypatch.setattr(limits, "TIER2_CHECK_QUEUE_S", SHORT_S)
    async with serving(hang) as place, asyncio.TaskGroup() as group:
        looks = [group.create_task(probe.look(place, CREDENTIALS)) for _ in range(limits.TIER2_ENDPOINT_CHECKS_MAX)]
        for _ in looks:
            await reached.acquire()
        with pytest.raises(UnavailableError, match="waits for other checks"):
            await probe.look(place, CREDENTIALS)
        let_go.set()
    assert {look.result() for look in looks} == {ClusterIdentity("c", 4)}


@pytest.mark.parametrize("access_key", ["access-id\n", "access\u20acid"])
async def test_a_header_that_cannot_be_sent_is_not_repeated(probe: MinioProbe, access_key: str) -> None:
    """It has the access key, and what is computed from the secret key."""
    async with serving(whole("200 OK", MARK)) as tier2:
        with pytest.raises(Tier2Error) as caught:
            await probe.look(tier2, Credentials(access_key, "secret"))
        assert caught.value.reason == "SecretInvalid"
        assert str(caught.value) == (
            f"spec.tier2.credentialsSecret: no request to {tier2.endpoint} can be made with the credentials of Secret "
            "minio: correct its accessKey and secretKey"
        )
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__, "the context has the header, which a log may show"


async def test_an_unreachable_endpoint_is_reported_without_names_of_the_program(
    probe: MinioProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def reason(endpoint: str) -> str:
        with pytest.raises(Tier2Error) as caught:
            await probe.look(Tier2Spec("data", endpoint, "minio", "streams"), CREDENTIALS)
        assert caught.value.reason == "EndpointUnreachable"
        return str(caught.value).partition("object store (")[2].removesuffix(")")

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        assert await reason(f"http://127.0.0.1:{taken.getsockname()[1]}") == "Connection refused"

    async def leave(writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def wait(writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with serving(leave) as tier2:
        assert await reason(tier2.endpoint) == "Remote end closed connection without response"
        with monkeypatch.context() as patch:
            patch.setattr(limits, "TIER2_CHECK_DEADLINE_S", SHORT_S)  # it waits for the rest of a request
            message = await reason(tier2.endpoint.replace("http:", "https:"))
        assert "_ssl.c" not in message
        assert "Http" not in message
    async with serving(wait) as tier2:
        with monkeypatch.context() as patch:
            patch.setattr(limits, "TIER2_CHECK_DEADLINE_S", SHORT_S)
            assert "HTTP" not in await reason(tier2.endpoint)

    async def greet(writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-hidden\r\n")

    async with serving(greet) as tier2:
        assert await reason(tier2.endpoint) == "its response is not HTTP, or is incomplete"
    unresolved = await reason("http://nowhere.invalid:9000")
    assert "Http" not in unresolved
    assert "nowhere.invalid" not in unresolved, "the endpoint is named before"
