"""Errors are one line and an exit code."""

import json
import os
import socket
from pathlib import Path

import pytest

from tailrace.cli.main import one_line, run
from tailrace.cli.settings import SETTINGS
from tailrace.common.errors import BadRequestError, NoSuchStreamError

DIGITS = "9" * 5000
"""More than Python makes an integer of."""


@pytest.fixture
def unused_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_the_message_of_our_own_errors() -> None:
    assert one_line(NoSuchStreamError("stream a/b\n does not exist")) == "stream a/b does not exist"


def test_others_are_named() -> None:
    assert one_line(ValueError("what")) == "ValueError: what"
    assert one_line(BadRequestError()) == "BadRequestError"
    assert one_line(FileNotFoundError(2, "No such file or directory", "x")) == "x: No such file or directory"
    noted = BadRequestError("first")
    noted.add_note("x could not\nbe cleaned up")
    assert one_line(noted) == "first; x could not be cleaned up"
    assert one_line(ExceptionGroup("several", [BadRequestError("first"), ValueError("second")])) == "first"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["stream", "create"], 2, "tailrace stream create: missing argument 'SCOPE/STREAM'."),
        (["stream", "info", "plain"], 2, "'plain' is not of the form SCOPE/STREAM (see tailrace stream info --help)"),
        (["stream", "info", "a/b c"], 1, "tailrace: stream name 'b c' may only hold letters, digits, '.' and '-'"),
        (["stream", "create", "a/_b"], 1, "tailrace: stream name '_b' may only hold letters, digits, '.' and '-'"),
        (["stream", "create", "a/b", "--segments", "2", "--event-rate", "5"], 2, "exclude each other"),
        (["stream", "create", "a/b", "--min", "2"], 2, "--factor and --min need"),
        (["stream", "create", "a/b", "--segments", "0"], 2, "--segments"),
        (["stream", "create", "a/b", "--retention-time", "5"], 2, "is not a duration"),
        (["stream", "create", "a/b", "--retention-size", "2KB:1KB"], 2, "the maximum is below the minimum"),
        (["stream", "create", "a/b", "--retention-size", "0:0"], 2, "'0:0': the maximum must be more than 0"),
        (["stream", "update", "a/b", "--retention-time", "0s:0.5ms"], 2, "the maximum must be more than 0"),
        (["stream", "create", "a/b", "--event-rate", "99999999999"], 2, "--event-rate"),
        (["stream", "create", "a/b", "--kb-rate", "2147483648"], 2, "--kb-rate"),
        (["stream", "update", "a/b"], 2, "no change was given"),
        (["stream", "update", "a/b", "--segments", "2", "--min", "5"], 2, "--factor and --min need"),
        (["stream", "update", "a/b", "--no-retention", "--retention-time", "1d"], 2, "--no-retention excludes"),
        (["stream", "update", "a/b", "--retention-size", "2KB:1KB"], 2, "the maximum is below the minimum"),
        (["stream", "scale", "a/b"], 2, "give either --segments N"),
        (["stream", "scale", "a/b", "--segments", "2", "--split", "0:2"], 2, "give either --segments N"),
        (["stream", "create", "a/b", "--retention-size", DIGITS], 2, "'--retention-size': '999"),
        (["stream", "create", "a/b", "--retention-time", f"1.{DIGITS}s"], 2, "'--retention-time': '1.999"),
        (["stream", "scale", "a/b", "--segments", "2", "--wait", f"{DIGITS}s"], 2, "'--wait': '999"),
        (["standalone", "--cache", DIGITS], 2, "99' has too many digits"),
        (["stream", "truncate", "a/b", f"0:{DIGITS[:27]}"], 2, f"'CUT': offset {DIGITS[:27]} is too large"),
        (["stream", "truncate", "a/b", f"0:{DIGITS}"], 2, f"'CUT': offset {DIGITS[:80]} is too large"),
        (["stream", "truncate", "a/b", f"{DIGITS}:0"], 2, f"'CUT': segment {DIGITS[:80]} is too large"),
        (["stream", "truncate", "a/b", f"0.#epoch.{DIGITS}:0"], 2, f"'CUT': epoch {DIGITS[:80]} is too large"),
        (["stream", "truncate", "a/b", "nonsense"], 2, "is not head, tail or a stream cut"),
        (["read", "a/b", "--from", "nonsense"], 2, "is not head, tail or a stream cut"),
        (["read", "a/b", "--limit", "0"], 2, "--limit"),
        (["scope", "create", "a b"], 1, "tailrace: scope name 'a b' may only hold letters, digits, '.' and '-'"),
        (["standalone", "--cache", "much"], 2, "'much' is not a size such as 256MiB"),
        (["standalone", "--controller-port", "65536"], 2, "--controller-port"),
        (["stream", "history", "a/b", "--plot", "/no/such/x.png"], 2, "'--plot': /no/such is not a folder"),
        (["bench", "index", "--count", "100", "--plot", "/no/such/x.png"], 2, "'--plot': /no/such is not a folder"),
        (["bench", "index", "--count", "100", "--plot", "/dev"], 2, "'--plot': /dev is a folder"),
        (["standalone", "--data", "/dev/null/x", "--ready-file", "/no/x/r.json"], 2, "'--ready-file': /no/x is not"),
        (["standalone", "--data", "/dev/null/x", "--ready-file", "/dev"], 2, "'--ready-file': /dev is a folder"),
        (["nonsense"], 2, "nonsense"),
        (["--controller", "ftp://x", "scope", "list"], 1, "controller address 'ftp://x' has an unknown scheme"),
        (["scope", "list", "--controller", "tcp://nowhere"], 1, "is not of the form tcp://HOST:PORT"),
        (["inspect", "cache", "--admin", "nonsense"], 1, "tailrace: the admin interface at nonsense cannot be reached"),
    ],
)
def test_one_line_on_standard_error(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str], unused_port: int) -> None:
    address = f"127.0.0.1:{unused_port}"
    assert run(["stream", "list", "demo", "--controller", f"tcp://{address}"]) == 1
    assert capsys.readouterr().err == (
        f"tailrace: the controller at tcp://{address} cannot be reached: Connection refused\n"
    )
    assert run(["inspect", "containers", "--admin", f"http://{address}"]) == 1
    assert f"the admin interface at http://{address} cannot be reached" in capsys.readouterr().err


def test_something_else_than_a_controller(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("tailrace.cli.session.CONNECT_DEADLINE_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for scheme in ("tcp", "tls"):
            address = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}"
            assert run(["scope", "list", "--controller", address]) == 1
            assert capsys.readouterr().err == (
                f"tailrace: the server at {address} is not a controller, or its TLS settings differ\n"
            )


def test_a_host_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scope", "list", "--controller", "tcp://host.invalid:9090"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("tailrace: the controller at tcp://host.invalid:9090 cannot be reached: ")
    assert "Unknown error" not in message


def test_tracebacks_only_with_debug(unused_port: int) -> None:
    with pytest.raises(Exception, match="cannot be reached"):
        run(["--debug", "scope", "list", "--controller", f"tcp://127.0.0.1:{unused_port}"])


def test_an_option_after_the_command_wins(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TAILRACE_CONTROLLER", "ftp://environment")
    assert run(["scope", "list"]) == 1
    assert "ftp://environment" in capsys.readouterr().err
    assert run(["--controller", "ftp://before", "scope", "list"]) == 1
    assert "ftp://before" in capsys.readouterr().err
    assert run(["--controller", "ftp://before", "scope", "list", "--controller", "ftp://after"]) == 1
    assert "ftp://after" in capsys.readouterr().err
    assert SETTINGS.controller_given


def test_a_picture_that_cannot_be_written_leaves_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "index", "--count", "100", "--json", "--plot", "/dev/full"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["rows"]
    assert err.splitlines()[-1] == "tailrace: No space left on device"


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    assert "standalone" in capsys.readouterr().out
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("tailrace ")
    assert run([]) == 2


def test_more_workers_than_containers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["standalone", "--data", str(tmp_path), "--containers", "2", "--workers", "3"]) == 1
    assert "--workers 3: between 1 and the number of containers, 2" in capsys.readouterr().err


def test_more_workers_than_one_process_may_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["standalone", "--data", str(tmp_path), "--containers", "128", "--workers", "65"]) == 1
    assert "--workers 65: between 1 and 64\n" in capsys.readouterr().err


def test_a_cache_that_is_too_small_for_all_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ports = [text for name in ("controller", "rest", "store", "admin") for text in (f"--{name}-port", "0")]
    assert run(["standalone", "--data", str(tmp_path), *ports, "--workers", "2", "--cache", "64MiB"]) == 1
    assert "--cache 64.0 MiB is too small: at least 64.0 MiB for each of 2 workers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--s3-endpoint", "http://x"], "tailrace: --s3-endpoint needs --tier2 s3://BUCKET/PREFIX"),
        (["--s3-endpoint", "http://x", "--tier2", "file:///x"], "tailrace: --s3-endpoint needs --tier2 s3://"),
        (["--s3-endpoint", "x:9000", "--tier2", "s3://b/p"], "tailrace: --s3-endpoint 'x:9000' is not of the form"),
        (["--s3-endpoint", "http://x", "--tier2", "s3://b/p"], "needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        (["--cache", "100000GiB"], "tailrace: memory budgets add up to"),
    ],
)
def test_a_server_that_cannot_start_says_so_in_one_line(
    options: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    assert run(["standalone", "--data", str(tmp_path / "data"), *options]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
