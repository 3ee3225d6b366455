"""Commands, typed in this process."""

from typing import Any

from typer.testing import CliRunner, Result

from tractable.cli import models
from tractable.cli.app import app
from tractable.cli.task import Task


def run(*words: object) -> Result:
    """A command, in this process."""
    return CliRunner().invoke(app, [str(word) for word in words])


def fault(*words: object) -> str:
    """The sentence of a command that must fail with one."""
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return result.stderr


def task_of(spec: dict[str, Any]) -> Task:
    """The task of a saved run, or of options as they are typed."""
    return models.kind_of(spec.get("model", "glm")).read(spec)
