"""The README's Python lines run as they stand."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.slow
@pytest.mark.computes
def test_python_blocks_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 7
    names: dict = {"key": jax.random.key(0), "position": {"theta": jnp.zeros(())}}

    def run(block: str) -> None:
        exec(compile(block, "README.md", "exec"), names)

    run(blocks[0])
    held_out = names["y"][330:]
    assert 0.75 < np.mean((names["lower"] <= held_out) & (held_out <= names["upper"])) <= 1
    run(blocks[1])
    assert names["posterior"].report().verdict in ("trust", "caution")
    assert "nuts" in capsys.readouterr().out.lower()
    run(blocks[2])
    assert names["calibration"].report().verdict == "trust" and (tmp_path / "ranks.png").exists()
    rng = np.random.default_rng(0)
    names["x"] = rng.normal(size=(40, 8))
    names["y"] = np.tanh(names["x"][:, 0]) + 0.1 * rng.normal(size=40)
    run(blocks[3])
    assert names["mean"].shape == names["epistemic"].shape == (40,)
    names["batch"] = names["tr"].core.whole(names["data"].arrays())
    run(blocks[4])
    assert abs(names["found"].mean()["good"] - 0.6) < 4 * names["found"].sd()["good"]
    run(blocks[5])
    pixels = names["digits"].mean(0).clip(0.01, 0.99)
    apart = np.mean(np.sum(np.where(names["digits"] > 0.5, np.log(pixels), np.log1p(-pixels)), 1))
    assert names["deep"].elbo(names["digits"][1500:]).mean() > apart + 0.5
    run(blocks[6])
    assert names["info"].step_size > 0
