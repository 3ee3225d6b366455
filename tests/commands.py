"""Commands, typed in this process."""

from typer.testing import CliRunner, Result

from tractable.cli.app import app


def run(*words: object) -> Result:
    """A command, in this process."""
    return CliRunner().invoke(app, [str(word) for word in words])


def fault(*words: object) -> str:
    """The sentence of a command that must fail with one."""
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return result.stderr
