"""The command group: help, version, exit codes, .env, and parse_args."""

import os
import re
import sys
import types

import click
import pytest
from command import new_python
from command import run_command as run

import reward_kit
from reward_kit import RewardKitError
from reward_kit.cli import cli, main, parse_args


@pytest.fixture
def command(monkeypatch):
    """``command(function)`` stands in for ``reward-kit preview``."""

    def put(function):
        module = types.ModuleType("reward_kit.cli.preview")
        module.preview = click.command("preview")(function)
        monkeypatch.setitem(sys.modules, "reward_kit.cli.preview", module)

    monkeypatch.setattr(sys, "path", list(sys.path))
    return put


class TestHelp:
    @pytest.mark.parametrize("arguments", [["--help"], ["-h"], []])
    def test_names_every_command_with_a_line(self, arguments):
        done = run(*arguments)
        assert done.code == 0
        assert max(map(len, done.out.splitlines())) <= 80
        assert len(done.out.splitlines()) <= 23  # and the prompt after it
        for line in ("Bundles init Make a new bundle", "Evaluate agent-eval Evaluate an agent on"):
            assert line in " ".join(done.out.split())
        assert not re.search("deploy|preview|audit|gate|card ", done.out)

    def test_old_commands_are_other_names(self):
        for old, new in (("gate", "compare"), ("card", "export"), ("audit", "validate")):
            assert run(old, "--help").out.startswith(f"Usage: reward-kit {new} ")

    @pytest.mark.parametrize("name", cli.list_commands(click.Context(cli)))
    def test_says_of_each_command_what_the_command_says_of_itself(self, name):
        context = click.Context(cli)
        command = cli.get_command(context, name)
        assert " ".join(command.get_short_help_str(200).split()) in " ".join(context.get_help().split())

    def test_version(self):
        done = run("--version")
        assert (done.code, done.out) == (0, f"reward-kit {reward_kit.__version__}\n")


class TestExitCodes:
    def test_what_a_command_returns_or_exits_with(self, command):
        def leaves():
            click.get_current_context().exit(3)

        for function, code in [(lambda: None, 0), (lambda: 1, 1), (leaves, 3)]:
            command(function)
            assert main(["preview"]) == code

    def test_an_error_of_ours_is_one_line_and_2(self, command, capsys):
        def fail():
            raise RewardKitError("no such file", place="task.jsonl:3", remedy="Make one.")

        command(fail)
        assert main(["preview"]) == 2
        assert capsys.readouterr() == ("", "Error: task.jsonl:3: no such file. Make one.\n")

    def test_wrong_usage_is_2(self):
        for argument, fault in (
            ("valdate", "No such command 'valdate' (did you mean 'validate'?)"),
            ("--nothing", "No such option"),
        ):
            done = run(argument)
            assert done.code == 2
            assert fault in done.err

    def test_an_interrupt_is_130(self, command):
        def interrupted():
            raise KeyboardInterrupt

        def aborted():
            raise click.Abort

        for function in (interrupted, aborted):
            command(function)
            assert main(["preview"]) == 130

    def test_a_fault_of_the_program_is_not_hidden(self, command):
        command(lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            main(["preview"])


class TestEnvironment:
    def test_a_dotenv_file_is_read_and_the_environment_wins(self, command, tmp_path, monkeypatch):
        (tmp_path / ".env").write_text("RK_TEST_NEW=file\nRK_TEST_SET=file\n")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("RK_TEST_NEW", "x")
        monkeypatch.delenv("RK_TEST_NEW")
        monkeypatch.setenv("RK_TEST_SET", "environment")
        seen = []
        command(lambda: seen.extend([os.environ["RK_TEST_NEW"], os.environ["RK_TEST_SET"]]))
        assert main(["preview"]) == 0
        assert seen == ["file", "environment"]

    def test_the_working_directory_can_be_imported_from(self, command, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        seen = []
        command(lambda: seen.append(sys.path[-1]))
        main(["preview"])
        assert seen == [str(tmp_path)]


class TestParseArgs:
    def test_preview(self):
        line = "preview --samples s.jsonl --metrics-folders a=x b=y --hf set"
        args, rest = parse_args(line.split())
        assert (args.command, args.verbose, args.samples) == ("preview", False, "s.jsonl")
        assert args.metrics_folders == ["a=x", "b=y"]
        assert (args.huggingface_dataset, args.max_samples, args.remote_url) == ("set", 5, None)
        assert rest == []

    def test_verbose_comes_before_the_command(self):
        for flag in ("-v", "--verbose"):
            assert parse_args([flag, "preview"])[0].verbose is True

    def test_arguments_it_does_not_know_are_given_back(self):
        assert parse_args(["preview", "--mood", "good"])[1] == ["--mood", "good"]

    def test_wrong_arguments_exit(self, capsys):
        for arguments in (["nothing"], ["deploy"], ["preview", "--max-samples", "none"]):
            with pytest.raises(SystemExit) as caught:
                parse_args(arguments)
            assert caught.value.code == 2
        with pytest.raises(SystemExit) as caught:
            parse_args(["preview", "--help"])
        assert caught.value.code == 0


def test_ctrl_c_while_the_command_is_imported_shows_no_traceback() -> None:
    program = (
        "import os, runpy, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name == 'click':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts)\n"
        "sys.argv = ['reward-kit', '--help']\n"
        "runpy.run_module('reward_kit', run_name='__main__')\n"
    )
    done = new_python("-c", program)
    assert (done.code, done.out, done.err) == (130, "", "Interrupted.\n")
