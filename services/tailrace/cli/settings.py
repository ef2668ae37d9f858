"""The options before the command, set once before any command runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import typer

DEFAULT_CONTROLLER: Final = "tcp://127.0.0.1:9090"
DEFAULT_ADMIN: Final = "http://127.0.0.1:6061"


@dataclass(slots=True)
class Settings:
    """Options of the whole program. An option after the command overrides them."""

    controller: str = DEFAULT_CONTROLLER
    controller_given: bool = False
    """Whether the command line has it: benchmarks ignore the environment variable."""
    debug: bool = False

    def choose_controller(self, option: str | None) -> str:
        """Return the address of the controller."""
        return option or self.controller


SETTINGS: Final = Settings()

ControllerOption = Annotated[
    str | None,
    typer.Option(
        "--controller",
        metavar="URI",
        help=f"Address of the controller. Default: TAILRACE_CONTROLLER, else {DEFAULT_CONTROLLER}.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
