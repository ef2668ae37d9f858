"""Manage streams, transactions, scaling and reader groups over segments and table segments.

See docs/design.md#controller.
"""
