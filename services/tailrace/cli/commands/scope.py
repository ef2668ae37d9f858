"""``tailrace scope``: scopes, the namespaces of streams."""

from __future__ import annotations

from typing import Annotated

import typer

from tailrace.cli.commands.arguments import ScopeArgument
from tailrace.cli.output import print_json, print_line
from tailrace.cli.session import connected, run
from tailrace.cli.settings import SETTINGS, ControllerOption, JsonOption
from tailrace.common.errors import AlreadyExistsError, NoSuchScopeError, NotEmptyError
from tailrace.common.names import check_scope_name

app = typer.Typer(help="Create, list and delete scopes.", no_args_is_help=True)


@app.command()
def create(
    scope: ScopeArgument,
    controller: ControllerOption = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Succeed if the scope exists.")] = False,
) -> None:
    """Create a scope."""
    check_scope_name(scope)

    async def work() -> None:
        async with connected(SETTINGS.choose_controller(controller)) as client:
            if not await client.controller.create_scope(scope) and not exist_ok:
                raise AlreadyExistsError(f"scope {scope} exists already")

    run(work())


@app.command("list")
def list_scopes(
    controller: ControllerOption = None,
    json: JsonOption = False,
    everything: Annotated[bool, typer.Option("--all", help="Include internal scopes.")] = False,
) -> None:
    """List scopes, one per line."""

    async def work() -> list[str]:
        async with connected(SETTINGS.choose_controller(controller)) as client:
            return sorted([name async for name in client.controller.list_scopes()])

    scopes = [name for name in run(work()) if everything or not name.startswith("_")]
    if json:
        print_json(scopes)
    else:
        for name in scopes:
            print_line(name)


@app.command()
def delete(
    scope: ScopeArgument,
    controller: ControllerOption = None,
    recursive: Annotated[
        bool, typer.Option("--recursive", help="Also delete its streams, reader groups and tables.")
    ] = False,
) -> None:
    """Delete a scope."""
    check_scope_name(scope, internal=True)

    async def work() -> None:
        from tailrace.client.stream_manager import StreamManager

        async with connected(SETTINGS.choose_controller(controller)) as client:
            try:
                found = await StreamManager(client).delete_scope(scope, recursive=recursive)
            except NotEmptyError as error:
                raise NotEmptyError(f"{error}; --recursive deletes them, too") from error
            if not found:
                raise NoSuchScopeError(f"scope {scope} does not exist")

    run(work())
