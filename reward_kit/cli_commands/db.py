"""``reward-kit db``: look into the databases that evaluations leave behind."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reward_kit.cli_commands.printing import say
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from reward_kit.agent.database.changes import Changes
    from reward_kit.agent.database.overlay import Overlay


class _File(click.Path):
    """The path of a file: of no folder, and of no pipe or device, which may never end."""

    def __init__(self, *, exists: bool = False) -> None:
        super().__init__(exists=exists, dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        assert isinstance(path, Path)
        if path.exists() and not path.is_file():
            self.fail(f"{str(path)!r} is not a file.", param, ctx)
        return path


_existing = _File(exists=True)


class _Commands(click.Group):
    """Turns the package's errors, and those of faulty database files, into one line on stderr and exit
    code 2.
    """

    def invoke(self, ctx: click.Context) -> Any:
        import apsw

        try:
            return super().invoke(ctx)
        except (RewardKitError, apsw.Error) as error:
            say(f"Error: {error}", err=True)
            sys.exit(2)


@click.group(cls=_Commands)
def db() -> None:
    """Open, export and compare databases of rollouts.

    PATH is a base, a delta (roll_*.dbd) or a complete SQLite file.
    """


@db.command("open")
@click.argument("path", type=_existing)
@click.argument("sql", nargs=-1)
@click.option(
    "--readonly/--writable",
    default=True,
    show_default=True,
    help="With --writable, changes are kept in memory and are gone at the end.",
)
def open_database(path: Path, sql: tuple[str, ...], readonly: bool) -> None:
    """SQL shell on the database at PATH; with SQL (or commands such as .schema), run that and leave.

    The file itself is never written.  `.help` lists the shell's commands.
    The exit code is 1 after an error in SQL, or in a script on standard input (the rest of it still runs).
    """
    import apsw.shell

    connection = _fork(path).connect()
    if readonly:
        connection.pragma("query_only", True)
    failed = False

    class Shell(apsw.shell.Shell):
        def handle_exception(self) -> None:
            """Called by ``cmdloop``, which goes on with the next statement."""
            nonlocal failed
            super().handle_exception()  # type: ignore[no-untyped-call]  # apsw's shell has no types
            failed = failed or not self.interactive

    shell: Any = Shell(db=connection, stdin=sys.stdin, stdout=sys.stdout, stderr=sys.stderr)
    try:
        for command in sql:
            shell.process_complete_line(command)
        if not sql:
            shell.cmdloop()
    except (apsw.Error, shell.Error, OSError) as error:
        if not getattr(error, "_handle_exception_saw_this", False):  # else the shell has printed it
            say(f"Error: {error}", err=True)
        sys.exit(1)
    except SystemExit as leave:  # .exit, .quit
        sys.exit(leave.code or int(failed))
    if failed:
        sys.exit(1)


@db.command()
@click.argument("path", type=_existing)
@click.argument("out", type=_File())
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
def export(path: Path, out: Path, force: bool) -> None:
    """Write the database at PATH to OUT as a complete SQLite file."""
    from reward_kit.agent.database.delta import export

    if out.exists() and not force:
        raise click.UsageError(f"{out} exists; --force replaces it.")
    export(_fork(path), out)
    say(f"{out}  {out.stat().st_size} bytes")


@db.command()
@click.argument("path", type=_existing)
@click.option("--base", type=_existing, help="Compare with this database; default: base.db beside PATH.")
@click.option("--full", is_flag=True, help="Show long values whole.")
@click.option("--json", "as_json", is_flag=True, help="One JSON list of row changes, with whole values.")
def changes(path: Path, base: Path | None, full: bool, as_json: bool) -> None:
    """Show the rows in which the database at PATH differs from its base."""
    found = _changes(path, base)
    if as_json:
        rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in found.to_json())
        say(f"[{rows}]")
        return
    lines, whole = found.lines(), found.lines(whole=True)
    for line in whole if full else lines:
        say(line)
    if not found:
        say("no changes", err=True)
    elif not full and lines != whole:
        say("long values are cut; --full shows them whole", err=True)


def _fork(path: Path) -> Overlay:
    from reward_kit.agent.database.base_image import BaseImage
    from reward_kit.agent.database.delta import is_delta, load_delta
    from reward_kit.agent.database.overlay import Overlay

    return load_delta(path) if is_delta(path) else Overlay(BaseImage.open(path))


def _changes(path: Path, base: Path | None) -> Changes:
    from reward_kit.agent.database.overlay_diff import overlay_changes
    from reward_kit.agent.database.table_diff import diff_databases

    overlay = _fork(path)
    if base is None and not overlay.pristine:
        return overlay_changes(overlay)
    if base is None:
        base = path.parent / "base.db"
        if not base.exists():
            raise click.UsageError(
                f"{path} is a complete database and there is no base.db beside it: give --base."
            )
    before, after = _fork(base).connect(), overlay.connect()
    return diff_databases(before.execute, after.execute)
