"""``tailrace pipeline``: the commands of several modules in one group."""

from __future__ import annotations

from tailrace.cli.commands import pipeline, pipeline_s3, pipeline_streams

app = pipeline.app
app.command("replay")(pipeline_streams.replay)
app.command("backfill")(pipeline_streams.backfill)
app.command("install-s3")(pipeline_s3.install_s3)
