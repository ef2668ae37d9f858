"""Scopes and streams from the command line."""

from __future__ import annotations

import json
import time
from pathlib import Path

from harness.pictures import pixels
from tailrace.cli.history_plot import ACTIVE_COLOR, SEALED_COLOR
from tailrace.common.stream_cut import parse_stream_cut


def test_scopes(cli, scope: str) -> None:
    assert scope in cli.ok("scope", "list").splitlines()
    assert "_system" not in cli.value("scope", "list")
    assert "_system" in cli.value("scope", "list", "--all")
    assert cli.fails("scope", "create", scope) == f"tailrace: scope {scope} exists already"
    assert cli.ok("scope", "create", scope, "--exist-ok") == ""
    cli.ok("stream", "create", f"{scope}/x")
    assert cli.fails("scope", "delete", scope) == (
        f"tailrace: scope {scope} is not empty: it has 1 stream (x); --recursive deletes them, too"
    )
    for number in range(6):
        cli.ok("stream", "create", f"{scope}/y{number}")
    assert cli.ok("read", f"{scope}/x", "--group", "mine", "--idle", "1ms") == ""
    left = cli.fails("scope", "delete", scope)
    assert "it has 7 streams (x, y0, y1, y2, y3 and 2 more), 1 reader group (mine); --recursive" in left
    cli.ok("group", "delete", scope, "mine")
    for number in range(6):
        cli.ok("stream", "delete", f"{scope}/y{number}", "--force")
    cli.ok("stream", "delete", f"{scope}/x", "--force")
    cli.ok("scope", "delete", scope)
    assert cli.fails("scope", "delete", scope) == f"tailrace: scope {scope} does not exist"


def test_creating_listing_and_looking_at_streams(cli, scope: str) -> None:
    cli.ok("stream", "create", f"{scope}/fixed", "--segments", "3", "--tag", "red", "--tag", "blue")
    cli.ok(
        *("stream", "create", f"{scope}/rated", "--event-rate", "100", "--factor", "3", "--min", "2"),
        *("--retention-time", "1d:7d"),
    )
    cli.ok("stream", "create", f"{scope}/large", "--kb-rate", "64", "--retention-size", "1GiB")
    assert cli.ok("stream", "list", scope).splitlines() == [f"{scope}/{name}" for name in ("fixed", "large", "rated")]
    assert cli.value("stream", "list", scope, "--tag", "red") == [f"{scope}/fixed"]
    assert f"{scope}/_MARKfixed" in cli.value("stream", "list", scope, "--all")
    fixed = cli.value("stream", "info", f"{scope}/fixed")
    assert fixed["state"] == "active"
    assert fixed["last_scale"] is None
    assert fixed["retained_bytes"] == 0
    assert fixed["held_bytes"] in {None, 0}, "a controller knows it soon after its start"
    assert fixed["scaling"] == {"type": "fixed", "min_segments": 3, "target_rate": 0, "scale_factor": 0}
    assert sorted(fixed["tags"]) == ["blue", "red"]
    assert [(segment["id"], segment["length"]) for segment in fixed["segments"]] == [(0, 0), (1, 0), (2, 0)]
    assert fixed["segments"][0]["low"] == 0.0
    assert fixed["segments"][-1]["high"] == 1.0
    rated = cli.value("stream", "info", f"{scope}/rated")
    assert rated["scaling"] == {
        "type": "by_rate_in_events",
        "min_segments": 2,
        "target_rate": 100,
        "scale_factor": 3,
    }
    applied_ms = rated["retention"].pop("applied_ms")
    assert applied_ms is None or applied_ms > time.time() * 1000 - 86_400_000, "none before the first round"
    assert rated["retention"] == {
        "type": "time",
        "min": 86_400_000,
        "max": 604_800_000,
        "subscribers": [],
        "last_truncation": None,
        "oldest_ms": None,
    }
    large = cli.value("stream", "info", f"{scope}/large")
    assert large["scaling"]["type"] == "by_rate_in_kbytes"
    assert [large["retention"][key] for key in ("type", "min", "max")] == ["size", 2**30, None]
    shown = cli.ok("stream", "info", f"{scope}/rated")
    assert "100 events/s per segment, factor 3, at least 2 segments" in shown
    assert "by time, at least 1d, at most 1w" in shown


def test_errors_of_streams(cli, scope: str) -> None:
    missing = f"{scope}/missing"
    cli.ok("stream", "create", f"{scope}/there")
    assert cli.fails("stream", "create", f"{scope}/there") == f"tailrace: stream {scope}/there exists already"
    assert cli.ok("stream", "create", f"{scope}/there", "--exist-ok") == ""
    assert "does not exist" in cli.fails("stream", "create", "no-such-scope/x")
    assert "does not exist" in cli.fails("stream", "list", "no-such-scope")
    for command in (["info"], ["seal"], ["delete"], ["delete", "--force"], ["scale", "--segments", "2"]):
        line = cli.fails("stream", command[0], missing, *command[1:])
        assert "missing" in line or "not" in line, line
    assert "missing" in cli.fails("read", missing)
    assert cli.fails("write", missing, text="x\n")
    assert cli.fails("stream", "delete", f"{scope}/there") == f"tailrace: stream {scope}/there is not sealed"


def test_scaling(cli, scope: str) -> None:
    stream = f"{scope}/scaled"
    cli.ok("stream", "create", stream)
    up = cli.value("stream", "scale", stream, "--segments", "4")
    assert [(segment["low"], segment["high"]) for segment in up] == [(0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0)]
    assert cli.value("stream", "scale", stream, "--segments", "4") == up
    identifiers = [segment["id"] for segment in up]
    mixed = cli.value(
        *("stream", "scale", stream, "--split", f"{identifiers[0]}:2"),
        *("--merge", f"{identifiers[2]},{identifiers[3]}"),
    )
    assert [segment["high"] for segment in mixed] == [0.125, 0.25, 0.5, 1.0]
    assert mixed[2]["id"] == identifiers[1]
    down = cli.value("stream", "scale", stream, "--segments", "2")
    assert [segment["high"] for segment in down] == [0.5, 1.0]
    assert down[1]["id"] == mixed[3]["id"]
    assert "is not active" in cli.fails("stream", "scale", stream, "--split", f"{identifiers[0]}:2")
    for malformed in (("--split", "0:1"), ("--split", "0"), ("--split", "x:2"), ("--merge", "0"), ("--merge", "0,x")):
        assert cli.run("stream", "scale", stream, *malformed).returncode == 2, malformed
    table = cli.ok("stream", "scale", stream, "--segments", "1")
    assert ": 1 active segment\n" in table


def test_scaling_below_the_number_of_a_fixed_policy_lowers_it(cli, scope: str) -> None:
    stream = f"{scope}/three"
    cli.ok("stream", "create", stream, "--segments", "3")
    assert "the policy's minimum is 3" in cli.fails("stream", "scale", stream, "--merge", "0,1")
    ended = cli.run("stream", "scale", stream, "--segments", "2", "--json")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == "lowering the policy's minimum from 3 to 2 segments\n"
    assert [segment["high"] for segment in json.loads(ended.stdout)] == [0.5, 1.0]
    assert cli.value("stream", "info", stream)["scaling"]["min_segments"] == 2


def test_updating(cli, scope: str) -> None:
    stream = f"{scope}/updated"
    cli.ok("stream", "create", stream, "--segments", "2", "--tag", "old", "--tag", "kept")
    cli.ok("write", stream, text="one\n")

    def info():
        return cli.value("stream", "info", stream)

    assert (
        cli.ok("stream", "update", stream, "--retention-time", "1d:7d", "--add-tag", "new", "--remove-tag", "old") == ""
    )
    changed = info()
    assert changed["retention"].pop("oldest_ms") > 0
    assert changed["retained_bytes"] == 8 + len("one")
    assert changed["held_bytes"] is None or 0 <= changed["held_bytes"] < 1000  # a flush may come in between
    assert "applied_ms" in changed["retention"]
    del changed["retention"]["applied_ms"]  # the policy is applied soon after the update, or was by now
    assert changed["retention"] == {
        "type": "time",
        "min": 86_400_000,
        "max": 604_800_000,
        "subscribers": [],
        "last_truncation": None,
    }
    assert sorted(changed["tags"]) == ["kept", "new"]
    assert [(segment["id"], segment["rate_per_s"]) for segment in changed["segments"]] == [(0, None), (1, None)]
    assert cli.value("stream", "list", scope, "--tag", "new") == [stream]
    assert cli.value("stream", "list", scope, "--tag", "old") == []
    cli.ok("stream", "update", stream, "--segments", "3", "--no-retention")
    changed = info()
    assert changed["retention"] is None
    assert len(changed["segments"]) == changed["scaling"]["min_segments"] == 3
    assert {**changed["last_scale"], "scaled_ms": 0} == {"scaled_ms": 0, "splits": 2, "merges": 1, "reason": "Policy"}
    assert "2 split, 1 merged, because its policy was updated" in cli.ok("stream", "info", stream)
    cli.ok("stream", "update", stream, "--event-rate", "100", "--min", "5")
    changed = info()
    assert changed["scaling"] == {"type": "by_rate_in_events", "min_segments": 5, "target_rate": 100, "scale_factor": 2}
    assert len(changed["segments"]) == 5
    assert {each["rate_per_s"] for each in changed["segments"]} <= {None, 0.0}, "nothing was written since"
    shown = cli.ok("stream", "info", stream)
    assert "events/s" in shown[shown.index("active segments") :]
    cli.ok("stream", "update", stream, "--factor", "3")
    assert info()["scaling"] == {**changed["scaling"], "scale_factor": 3}
    assert cli.ok("read", stream) == "one\n"
    assert "allowed are 1 to 255" in cli.fails("stream", "update", stream, "--add-tag", "x" * 256)
    assert "does not exist" in cli.fails("stream", "update", f"{scope}/none", "--segments", "2")
    cli.ok("stream", "seal", stream)
    assert cli.fails("stream", "update", stream, "--segments", "2") == f"tailrace: stream {stream} is sealed"
    assert "active segments" not in cli.ok("stream", "info", stream)


def test_an_update_of_other_settings_does_not_undo_a_scale(cli, scope: str) -> None:
    stream = f"{scope}/scaled"
    cli.ok("stream", "create", stream)
    scaled = cli.value("stream", "scale", stream, "--segments", "4")
    cli.ok("stream", "update", stream, "--add-tag", "x")
    info = cli.value("stream", "info", stream)
    assert [segment["id"] for segment in info["segments"]] == [segment["id"] for segment in scaled]
    assert (info["tags"], info["scaling"]["min_segments"]) == (["x"], 4)
    cli.ok("stream", "scale", stream, "--split", f"{info['segments'][0]['id']}:2")
    cli.ok("stream", "update", stream, "--segments", "4")
    assert len(cli.value("stream", "info", stream)["segments"]) == 4


def test_seal_delete_and_create_again(cli, scope: str) -> None:
    stream = f"{scope}/sealed"
    cli.ok("stream", "create", stream)
    cli.ok("write", stream, text="one\ntwo\n")
    cli.ok("stream", "seal", stream)
    cli.ok("stream", "seal", stream)
    info = cli.value("stream", "info", stream)
    assert info["state"] == "sealed"
    assert info["segments"] == []
    assert "sealed" in cli.fails("write", stream, text="three\n")
    assert "sealed" in cli.fails("stream", "scale", stream, "--segments", "2")
    assert cli.ok("read", stream) == "one\ntwo\n"
    cli.ok("stream", "delete", stream)
    assert "does not exist" in cli.fails("stream", "delete", stream)
    cli.ok("stream", "create", stream)
    assert cli.ok("read", stream) == ""


def test_truncation(cli, scope: str) -> None:
    stream = f"{scope}/truncated"
    cli.ok("stream", "create", stream)
    cli.ok("write", stream, text="one\ntwo\n")
    middle = cli.value("stream", "info", stream)["tail"]
    cut = parse_stream_cut(middle)
    assert cut is not None
    assert cut.positions == {0: 22}
    cli.ok("write", stream, text="three\n")
    would = cli.value("stream", "truncate", stream, "0.#epoch.0:22", "--dry-run")
    piece = {"segment": f"{stream}/0.#epoch.0", "from": 0, "to": 22, "bytes": 22}
    assert would == {"stream": stream, "cut": middle, "bytes": 22, "segments": [piece], "dry_run": True}
    assert "22 bytes would be given up" in cli.ok("stream", "truncate", stream, middle, "--dry-run")
    assert cli.ok("read", stream) == "one\ntwo\nthree\n", "a dry run changes nothing"
    assert cli.value("stream", "truncate", stream, middle) == would | {"dry_run": False}
    assert cli.value("stream", "info", stream)["head"] == middle
    for place in (f"{stream}/0.#epoch.0:36", "0:11"):
        assert "lies before the head or beyond a segment's end" in cli.fails("stream", "truncate", stream, place)
    assert "which has 35 bytes" in cli.fails("stream", "truncate", stream, "0:36", "--dry-run")
    assert "before the head" in cli.fails("stream", "truncate", stream, "0:11", "--dry-run")
    assert "has no such segment" in cli.fails("stream", "truncate", stream, "1:0")
    assert cli.ok("read", stream) == "three\n"
    cli.ok("stream", "truncate", stream, "tail")
    assert cli.ok("read", stream) == ""
    other = f"{scope}/other"
    cli.ok("stream", "create", other)
    assert cli.fails("stream", "truncate", other, middle) == (
        f"tailrace: the stream cut belongs to {stream}, not to {other}"
    )


def test_a_truncation_behind_scales_stays_at_the_head_for_other_keys(cli, scope: str) -> None:
    """One half of the keys was split; of the other half nothing is given up."""
    stream = f"{scope}/scaled"
    cli.ok("stream", "create", stream, "--segments", "2")
    keys = "".join(json.dumps({"key": f"k{number}"}) + "\n" for number in range(200))
    cli.ok("write", stream, "--key", "key", text=keys)
    before = {segment["id"]: segment["length"] for segment in cli.value("stream", "info", stream)["segments"]}
    cli.ok("stream", "scale", stream, "--split", "0:2")
    cli.ok("write", stream, "--key", "key", text=keys)
    active = [segment for segment in cli.value("stream", "info", stream)["segments"] if segment["epoch"] == 1]
    lower = min(active, key=lambda segment: segment["low"])
    place = f"{lower['number']}.#epoch.1:{lower['length']}"
    would = cli.value("stream", "truncate", stream, place, "--dry-run")
    assert {piece["segment"]: (piece["from"], piece["to"]) for piece in would["segments"]} == {
        f"{stream}/0.#epoch.0": (0, before[0]),
        f"{stream}/{lower['number']}.#epoch.1": (0, lower["length"]),
    }
    cli.ok("stream", "truncate", stream, place)
    assert cli.value("stream", "info", stream)["head"] == would["cut"]
    cut = parse_stream_cut(would["cut"])
    assert cut is not None
    assert sorted(cut.positions.values()) == [0, 0, lower["length"]]
    assert "before the head" in cli.fails("stream", "truncate", stream, f"0:{before[0]}", "--dry-run")


def test_a_server_that_is_not_there(cli) -> None:
    line = cli.fails("scope", "list", "--controller", "tcp://127.0.0.1:1")
    assert line == "tailrace: the controller at tcp://127.0.0.1:1 cannot be reached: Connection refused"
    assert "cannot be reached" in cli.fails("inspect", "cache", "--admin", "http://127.0.0.1:1")


def test_ports_in_use(cli, tmp_path: Path) -> None:
    used = cli.endpoints.ports()
    for name in ("controller", "rest", "store", "admin"):
        ports = dict.fromkeys(used, "0") | {name: str(used[name])}
        options = [text for other, port in ports.items() for text in (f"--{other}-port", port)]
        ended = cli.run("standalone", "--data", str(tmp_path / name), *options)
        assert ended.returncode == 1
        assert ended.stderr.splitlines()[-1] == (
            f"tailrace: {name} port {used[name]} of 127.0.0.1: Address already in use"
        )


def test_the_history_of_a_stream(cli, scope: str, tmp_path: Path) -> None:
    stream = f"{scope}/scaled"
    cli.ok("stream", "create", stream, "--segments", "2")
    cli.ok("write", stream, text="one\ntwo\n")
    cli.ok("stream", "scale", stream, "--split", "0:2")
    cli.ok("stream", "scale", stream, "--segments", "1")
    whole = tmp_path / "whole.png"
    cli.ok("stream", "history", stream, "--plot", str(whole))
    assert min(pixels(whole, SEALED_COLOR), pixels(whole, ACTIVE_COLOR)) > 0
    cli.ok("stream", "truncate", stream, "tail")
    found = cli.value("stream", "history", stream)
    assert [(each["splits"], each["merges"]) for each in found["epochs"]] == [(0, 0), (1, 0), (0, 1)]
    assert [len(each["segments"]) for each in found["epochs"]] == [2, 3, 1]
    assert [each["sealed_ms"] is None for each in found["segments"]] == [False] * 4 + [True]
    assert sum(each["length_bytes"] for each in found["segments"]) == 2 * (8 + 3)
    assert list(found["head"]) == [str(found["segments"][-1]["id"])]
    picture = tmp_path / "history.png"
    shown = cli.ok("stream", "history", stream, "--plot", str(picture))
    assert f"{stream}, active" in shown
    assert pixels(picture, SEALED_COLOR) < pixels(whole, SEALED_COLOR), "what was truncated is shaded"
    lost = cli.run("stream", "history", stream, "--plot", "/dev/full")
    assert (lost.returncode, lost.stdout) == (1, shown), "printed before it is drawn"
    assert lost.stderr == "tailrace: No space left on device\n"
    assert cli.fails("stream", "history", f"{scope}/missing") == f"tailrace: stream {scope}/missing does not exist"
