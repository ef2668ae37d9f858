"""Sums, texts and page of an audit, and where its report may not go (docs/spark-audit.md#page)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tailrace.cli.audit_output import print_summary, write_page
from tailrace.common import limits
from tailrace.pipelines.audit.job import is_within
from tailrace.pipelines.audit.page import page
from tailrace.pipelines.audit.summary import ContainerSums, Finding, Summary

LOST = Finding("missing", 1, "scope/a/0.#epoch.0", 7, "c1/x", None, "the object does not exist")


def summary(containers: int = 2) -> Summary:
    sums = [ContainerSums(number, 1, 90, 2, 100, 100) for number in range(containers)]
    return Summary("a-cluster", sums, {"verified": 3}, {"verified": 500})


def damaged() -> Summary:
    found = summary()
    found.containers[1].verified_bytes = 60
    found.containers[1].gone_bytes = 20
    found.containers[1].findings = {"missing": 1}
    found.findings = {"missing": 1}
    found.listed = [LOST]
    return found


def test_a_finding_says_where_in_one_line() -> None:
    assert str(LOST) == "missing: container 1, segment scope/a/0.#epoch.0 at 7, object c1/x: the object does not exist"
    text = str(Finding("orphan", None, None, None, "c0/\n\x1b[2Jx", None, "no reference names the object"))
    assert text == r"orphan: object c0/\n\x1b[2Jx: no reference names the object"


def test_what_is_gone_is_no_part_of_the_share() -> None:
    _, container = damaged().containers
    assert container.share_verified == 60 / 80
    assert ContainerSums(0).share_verified == 1.0


def test_orphans_can_be_ignored_and_nothing_else() -> None:
    found = summary()
    assert found.healthy()
    found.findings = {"orphan": 3}
    assert (found.healthy(), found.healthy(ignore_orphans=True)) == (False, True)
    found.findings["gap"] = 1
    assert not found.healthy(ignore_orphans=True)
    assert found.as_json()["finding_count"] == 4


def test_the_page_needs_nothing_else_and_escapes_names() -> None:
    found = damaged()
    found.listed = [Finding("orphan", None, None, None, "<script>alert(1)</script>", 0, "no & reference")]
    text = page(found, "s3://bucket/<b>", "2026-11-24 20:00:00 UTC")
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "s3://bucket/&lt;b&gt;" in text
    assert re.findall(r'(?:src|href)="(?!data:)', text) == []
    assert "1 findings" in text
    assert "80.0000 %" not in text
    assert "75.0000 %" in text


def test_numbers_are_aligned_and_texts_that_begin_with_a_digit_are_not() -> None:
    found = damaged()
    found.listed = [Finding("missing", 1, "7/a/0", 1234567, "c1/x", None, "70 bytes of the segment are missing")]
    text = page(found, "tier2", "now")
    assert "<td>70 bytes of the segment are missing</td>" in text
    assert "<td>7/a/0</td>" in text
    assert '<td class="number">1234567</td>' in text
    assert '<td class="number">75.0000 %</td>' in text


def test_a_share_that_is_almost_whole_is_not_shown_as_whole() -> None:
    found = damaged()
    found.containers = [ContainerSums(0, 1, 10**12, 2, 10**12, 10**12 - 1, findings={"damaged": 1})]
    text = page(found, "tier2", "now")
    assert "99.9999 %" in text
    assert "100 %" not in text


def test_pictures_show_some_containers_and_findings_are_bounded(tmp_path: Path) -> None:
    found = summary(limits.AUDIT_CHART_CONTAINERS_MAX + 5)
    found.containers[44].findings = {"missing": 2}
    found.findings = {"missing": limits.AUDIT_SHOWN_MAX + 1}
    found.listed = [LOST] * limits.AUDIT_SHOWN_MAX
    file = tmp_path / "new" / "page.html"
    write_page(file, found, "tier2", 1_800_000_000_000)
    text = file.read_text()
    assert f"The pictures show the {limits.AUDIT_CHART_CONTAINERS_MAX} containers" in text
    assert "And 1 more, in the report." in text
    assert '<td class="number">44</td>' in text
    assert "2027-01-15 08:00:00 UTC" in text


def test_the_command_prints_sums_and_findings(capsys: pytest.CaptureFixture[str]) -> None:
    found = damaged()
    found.findings = {"missing": 3}
    print_summary("tier2", found, "out", None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tier2: 3 findings"
    assert lines[-2:] == [str(LOST), "and 2 more findings, in the report"]


@pytest.mark.parametrize(
    ("output", "store", "expected"),
    [
        ("/data/tier2/audit", "file:///data/tier2", True),
        ("file:///data/tier2", "file:///data/tier2", True),
        ("file:/data/x/../tier2/audit", "file:///data/tier2", True),
        ("file:///data/tier2-audit", "file:///data/tier2", False),
        ("/data", "file:///data/tier2", False),
        ("s3a://bucket/prefix/audit", "s3://bucket/prefix", True),
        ("s3a://bucket/audit", "s3://bucket", True),
        ("s3a://bucket/prefix-2", "s3://bucket/prefix", False),
        ("s3a://other/prefix", "s3://bucket/prefix", False),
        ("hdfs://host/prefix", "s3://bucket/prefix", False),
        ("/bucket/prefix", "s3://bucket/prefix", False),
        ("/data/run#1/tier2/audit", "file:///data/run#1/tier2", True),
        ("file:///data/run#1/tier2/audit", "file:///data/run#1/tier2", True),
        ("file:///data/run%231/tier2/audit", "file:///data/run#1/tier2", True),
        ("file:/data/50%25/tier2/audit", "file:///data/50%25/tier2", True),
        ("/data/run/audit", "file:///data/run#1/tier2", False),
    ],
)
def test_whether_a_report_would_lie_in_tier_2(output: str, store: str, expected: bool) -> None:
    assert is_within(output, store) is expected


def test_a_link_into_tier_2_lies_in_it(tmp_path: Path) -> None:
    (tmp_path / "tier 2").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "tier 2")
    assert is_within(f"{tmp_path}/link/audit", f"file://{tmp_path}/tier 2")
    assert is_within((tmp_path / "tier 2/audit").as_uri(), f"file://{tmp_path}/tier 2")
