"""``python -m tailrace.cli``."""

from tailrace.cli.main import main

main()
