"""``python -m tailrace.cli``."""

from tailrace.cli.entry import main

main()
