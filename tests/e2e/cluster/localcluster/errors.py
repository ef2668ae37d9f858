"""The one error that ends a command: its message is a line for people."""

from __future__ import annotations


class ClusterError(Exception):
    """The cluster cannot do what was asked; the message names the cause and what helps, in one line."""
