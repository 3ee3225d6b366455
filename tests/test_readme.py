"""The README's Python lines run as they stand."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.slow
def test_python_blocks_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    names: dict = {"key": jax.random.key(0), "position": {"theta": jnp.zeros(())}}
    exec(compile(blocks[0], "README.md", "exec"), names)
    assert names["posterior"].report().verdict in ("trust", "caution")
    assert "nuts" in capsys.readouterr().out.lower()
    names["batch"] = names["tr"].core.whole(names["data"].arrays())
    exec(compile(blocks[1], "README.md", "exec"), names)
    assert names["info"].step_size > 0
