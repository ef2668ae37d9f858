"""What the options before the command say; set once, before any command runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import typer

DEFAULT_CONTROLLER: Final = "tcp://127.0.0.1:9090"
DEFAULT_ADMIN: Final = "http://127.0.0.1:6061"


@dataclass(slots=True)
class Settings:
    """Options of the whole program; an option after the command wins over the one before it."""

    controller: str = DEFAULT_CONTROLLER
    controller_given: bool = False
    """Whether it was given on the command line: the environment does not choose what is measured."""
    debug: bool = False

    def choose_controller(self, option: str | None) -> str:
        """Where the controller is."""
        return option or self.controller


SETTINGS: Final = Settings()

ControllerOption = Annotated[
    str | None,
    typer.Option(
        "--controller",
        metavar="URI",
        help=f"Address of the controller; else TAILRACE_CONTROLLER, else {DEFAULT_CONTROLLER}.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
