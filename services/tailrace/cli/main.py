"""The `tailrace` command. An error is one line with exit code 1, or 2 for a wrong command line."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import typer
from typer.exceptions import TyperException

from tailrace.cli.output import one_line
from tailrace.cli.settings import DEFAULT_CONTROLLER, SETTINGS
from tailrace.common.process_exit import end_process

_COMMANDS: Final = {
    "standalone": "server",
    "segmentstore": "pods",
    "controller": "pods",
    "restore": "restore",
    "scope": "scope",
    "stream": "stream",
    "group": "group",
    "write": "write",
    "read": "read",
    "inspect": "inspect",
    "bench": "bench",
    "pipeline": "pipeline_commands",
}
"""Each command, or group of commands, and its module. A module of a group has the group as ``app``, others a function
with the command's name."""


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"tailrace {version('tailrace')}")
        raise typer.Exit


def options(
    context: typer.Context,
    controller: Annotated[
        str,
        typer.Option("--controller", envvar="TAILRACE_CONTROLLER", metavar="URI", help="Address of the controller."),
    ] = DEFAULT_CONTROLLER,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of every command."""
    SETTINGS.controller = controller
    source = context.get_parameter_source("controller")
    SETTINGS.controller_given = source is not None and source.name == "COMMANDLINE"
    SETTINGS.debug = debug


def application(names: Iterable[str] = tuple(_COMMANDS)) -> typer.Typer:
    """Return the command line with these commands, by default with all.

    Loading and describing all commands takes longer than most of them run.
    """
    app = typer.Typer(
        name="tailrace",
        help="Tailrace: stream storage. Streams are named SCOPE/STREAM.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(options)
    for name in names:
        module = importlib.import_module(f"tailrace.cli.commands.{_COMMANDS[name]}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(getattr(module, name))
    return app


def _needed(arguments: Sequence[str]) -> list[str]:
    """Return the command that a command line names; all of them where it names none, or asks for help before it."""
    words = iter(arguments)
    for word in words:
        if word == "--controller":
            next(words, None)
        elif not word.startswith("-"):
            return [word] if word in _COMMANDS else list(_COMMANDS)
        elif word == "--help":
            break
    return list(_COMMANDS)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and end the process with its exit code."""
    end_process(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run a command; return its exit code. With ``--debug`` errors are raised instead."""
    SETTINGS.debug = False
    _open_standard_streams()
    try:
        code = typer.main.get_command(application(_needed(arguments))).main(
            list(arguments), prog_name="tailrace", standalone_mode=False
        )
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except TyperException as error:
        return _usage(error)
    except typer.Abort:
        return 1
    except BrokenPipeError:
        # The reader of our output has closed it, as in `tailrace read … | head`: not an error.
        sys.stdout = None  # nothing may be flushed at exit
        return 1
    except Exception as error:
        if SETTINGS.debug:
            raise
        sys.stderr.write(f"tailrace: {one_line(error)}\n")
        return 1


def _open_standard_streams() -> None:
    """Open the null device for a standard stream that the caller closed (`>&-`), so that no file gets its number."""
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            opened = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115  # for the rest of the process
            if opened.fileno() != number:
                os.dup2(opened.fileno(), number)
            setattr(sys, name, opened)


def _usage(error: TyperException) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(f"{error.message}\n")
        return 2
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "tailrace"
    reason = " ".join(error.format_message().split())
    sys.stderr.write(f"{command}: {reason[:1].lower()}{reason[1:]} (see {command} --help)\n")
    return error.exit_code


if __name__ == "__main__":
    main()
