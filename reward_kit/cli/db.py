"""``reward-kit db``: look into the databases that evaluations leave behind."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reward_kit.agent.base.files import write_output
from reward_kit.agent.base.printing import say
from reward_kit.cli.options import Command, file_option, runs_option, words
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from reward_kit.agent.database.overlay import Overlay

WRITABLE = "With --writable, changes are kept in memory until the end; the file is never written."
_name = words("name", metavar="NAME", required=True)


class _Commands(click.Group):
    """Shows the errors of faulty database files like the package's own: one line, exit code 2."""

    command_class = Command

    def invoke(self, ctx: click.Context) -> Any:
        import apsw

        try:
            return super().invoke(ctx)
        except (RewardKitError, apsw.Error) as error:
            say(f"Error: {error}", err=True)
            sys.exit(2)


@click.group(cls=_Commands)
def db() -> None:
    """Open and compare databases of rollouts.

    NAME is a database file, the id of a rollout, its exported roll_ID.json, or EVALUATION ROW#1.
    """


@db.command("open")
@click.argument("given", metavar="NAME [SQL]...", nargs=-1, required=True)
@click.option("--readonly/--writable", default=True, show_default=True, help=WRITABLE)
@runs_option
def open_database(given: tuple[str, ...], readonly: bool, output_dir: str) -> None:
    """SQL shell on the database NAME; with SQL (or commands such as .schema), run that and exit.

    `.help` lists the shell's commands. The exit code is 1 after an error in SQL, or in a script on standard
    input (the rest of the script still runs).
    """
    import apsw.shell

    named = 2 if re.fullmatch(r"\S+#\d+", "".join(given[1:2])) else 1
    name, sql = " ".join(given[:named]), given[named:]
    connection = _fork(name, output_dir)[0].connect()
    if readonly:
        connection.pragma("query_only", True)
    failed = False

    class Shell(apsw.shell.Shell):
        def handle_exception(self) -> None:
            """Called by ``cmdloop``, which continues with the next statement."""
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
        failed = True
    except SystemExit as stop:  # .exit, .quit
        sys.exit(stop.code or int(failed))
    sys.exit(int(failed))


@db.command()
@_name
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@runs_option
def export(name: str, out: Path, force: bool, output_dir: str) -> None:
    """Write the database NAME to OUT as a complete SQLite file."""
    if out.exists() and not (force and out.is_file()):
        fault = f"{out} exists; --force replaces it." if out.is_file() else f"{str(out)!r} is not a file."
        raise click.UsageError(fault)
    _fork(name, output_dir)[0].export(out)
    say(f"{out}  {out.stat().st_size} bytes")


@db.command()
@_name
@click.option("--base", help="Compare with this database. Default: the base of the rollout.")
@click.option("--full", is_flag=True, help="Show long values whole.")
@file_option("--json", help="Write the row changes, with whole values, as JSON.")
@runs_option
def changes(name: str, base: str | None, full: bool, json_path: str | None, output_dir: str) -> None:
    """Show the rows in which the database NAME differs from its base."""
    from reward_kit.agent.database.changes import Changes
    from reward_kit.agent.database.overlay_store import overlay_changes
    from reward_kit.agent.database.recorder import diff_databases

    overlay, path = _fork(name, output_dir)
    if base is None and not overlay.pristine:
        found = overlay_changes(overlay)
    else:
        beside = path.parent / "base.db"
        if base is None and not beside.exists():
            fault = f"{name} is a complete database and there is no base.db beside it: give --base."
            raise click.UsageError(fault)
        before, after = _fork(base or str(beside), output_dir)[0].connect(), overlay.connect()
        found = Changes.of(diff_databases(before.execute, after.execute))
    if json_path is not None:
        rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in found.to_json())
        write_output([f"[{rows}]\n".encode()], json_path)
        return
    lines, whole = found.lines(), found.lines(whole=True)
    for line in whole if full else lines:
        say(line)
    if not found:
        say("no changes", err=True)
    elif not full and lines != whole:
        say("long values are cut; --full shows them whole", err=True)


def _fork(name: str, output_dir: str) -> tuple[Overlay, Path]:
    """The database that ``name`` means, and the file that it comes from."""
    from reward_kit.agent.database.overlay import Overlay
    from reward_kit.agent.database.vfs import BaseImage
    from reward_kit.agent.store.loading import find_state

    path, delta = find_state(name, output_dir)
    base = BaseImage.open(path)
    return (Overlay(base) if delta is None else Overlay.from_delta(delta, base, name)), path
