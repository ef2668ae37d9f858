"""Logs of commands: those of every program (`common.logs`)."""

from tailrace.common.logs import configure_logs

__all__ = ["configure_logs"]
