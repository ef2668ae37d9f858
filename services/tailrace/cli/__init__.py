"""The tailrace command."""
