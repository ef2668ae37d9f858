"""Print tables for people, JSON for programs, progress and errors on standard error.

rich is imported at its first use, so that commands start fast.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tailrace.common.errors import TailraceError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

FOLDED_LENGTH: Final = 32
"""Columns with longer cells may be folded on a narrow terminal."""


def one_line(error: BaseException) -> str:
    """Return an error as one line: the message of our own errors, and also the type of others; then its notes."""
    notes = [" ".join(text.split()) for text in getattr(error, "__notes__", ())]
    return "; ".join([_text_of(error), *notes])


def _text_of(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return one_line(error.exceptions[0])
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    text = " ".join(str(error).split())
    if isinstance(error, TailraceError) and text:
        return text
    details = getattr(error, "details", None)
    if callable(details):
        text = " ".join(str(details()).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def print_json(value: Any) -> None:
    """Print one JSON value on one line, for programs."""
    sys.stdout.write(json.dumps(value) + "\n")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table with numbers aligned to the right."""
    from rich.table import Table

    table = Table()
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        long = any(len(_cell(row[index])) > FOLDED_LENGTH for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold", no_wrap=not long)
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    console = _stdout()
    console.print(
        title, style="bold", soft_wrap=True
    )  # printed separately: rich folds a table's title to the table's width
    console.print(table)


def print_fields(title: str, fields: Mapping[str, Any]) -> None:
    """Print names and values, each pair on one line of any length, because users copy stream cuts from it."""
    console = _stdout()
    console.print(title, style="bold", soft_wrap=True)
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        console.print(f"  {name.ljust(width)}  {_cell(value)}", soft_wrap=True)


def print_line(text: str) -> None:
    """Print one line on standard output."""
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """Print one line on standard error."""
    sys.stderr.write(text + "\n")


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def _stdout() -> Console:
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    # A table in a pipe is not folded to a terminal's width.
    return console if console.is_terminal else Console(highlight=False, markup=False, width=200)


class Bar:
    """A progress bar; without a terminal it shows nothing."""

    def __init__(self, progress: Progress | None = None, task: TaskID | None = None) -> None:
        self._progress = progress
        self._task = task

    def advance(self, amount: float) -> None:
        """Add to the completed amount."""
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, amount)

    def set(self, completed: float, total: float) -> None:
        """Set the completed and the total amount."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=completed, total=total)


@contextmanager
def progress_bar(text: str, total: float | None, *, shown: bool = True) -> Iterator[Bar]:
    """Show a bar (a spinner when `total` is None) while the block runs, if standard error is a terminal."""
    if not shown or not sys.stderr.isatty():
        yield Bar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns: list[Any] = [SpinnerColumn(), TextColumn("{task.description}")]
    if total is not None:
        columns += [BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn()]
    columns.append(TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bar(progress, progress.add_task(text, total=total))
