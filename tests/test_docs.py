"""The pages under docs/ that are programs run as they stand, and print what they say."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

CHAIN = Path(__file__).parents[1] / "docs" / "hidden-markov-chain.md"
ELSEWHERE = CHAIN.with_name("models-from-elsewhere.md")
NUMBER = r"-?\d+(?:\.\d+)?"


def blocks(page: Path) -> list[tuple[str, str]]:
    """Every Python block, and what is said to come out of it."""
    found = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", page.read_text(encoding="utf-8"), re.DOTALL)
    assert found, page
    return found


def same(printed: str, said: str) -> bool:
    """Word for word; numbers to a unit and a half of the last digit shown."""
    if re.sub(NUMBER, "#", printed).split() != re.sub(NUMBER, "#", said).split():
        return False
    return all(
        abs(float(a) - float(b)) <= (1.5 * 10.0 ** -len(b.partition(".")[2]) if "." in b else 0)
        for a, b in zip(re.findall(NUMBER, printed), re.findall(NUMBER, said), strict=True)
    )


def test_same():
    assert same("a 0.94 ± 0.01\n", "a 0.95 ± 0.01")
    assert not same("a 0.94", "a 0.97")
    assert not same("of 5", "of 6")
    assert not same("equal False", "equal True")


@pytest.mark.laws
@pytest.mark.computes
def test_hidden_markov_chain(capsys):
    names: dict = {}
    for code, said in blocks(CHAIN):
        exec(compile(code, CHAIN.name, "exec"), names)
        printed = capsys.readouterr().out
        assert same(printed, said), f"printed:\n{printed}\nsaid:\n{said}"


def ran_elsewhere(capsys, needing: bool) -> None:
    names: dict = {}
    for code, said in blocks(ELSEWHERE):
        if code.startswith("# needs pymc") and not needing:
            continue
        exec(compile(code, ELSEWHERE.name, "exec"), names)
        printed = capsys.readouterr().out
        assert same(printed, said), f"printed:\n{printed}\nsaid:\n{said}"


@pytest.mark.laws
def test_models_from_elsewhere(capsys):
    ran_elsewhere(capsys, False)


def test_models_from_pymc(capsys):
    pytest.importorskip("pymc")
    ran_elsewhere(capsys, True)


@pytest.mark.laws
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("before[:, None] + log_a, axis=0", "before[None, :] + log_a, axis=1"),
        ("log_b[1:], reverse=True", "log_b[:-1], reverse=True"),
        ("ahead = (log_b + log_beta)[1:", "ahead = (log_b + log_beta)[:-1"),
        ("share.T @ jax.nn.one_hot(x, L", "jnp.exp(log_alpha - log_p).T @ jax.nn.one_hot(x, L"),
    ],
    ids=["chain runs backward", "b one throw late", "pairs one throw late", "filtered for smoothed"],
)
def test_its_laws_notice(right, wrong, capsys):
    """A recursion with a classic slip fails the page's own two laws."""
    names: dict = {}
    for code, _ in blocks(CHAIN):
        if "tr.infer" in code:
            break
        assert code.count(right) <= 1
        exec(compile(code.replace(right, wrong), CHAIN.name, "exec"), names)
    said = re.findall(r"equal (\w+)", capsys.readouterr().out)
    assert len(said) == 2
    assert said[0] == said[1] == "False"


def test_it_is_short():
    assert sum(len([line for line in code.splitlines() if line.strip()]) for code, _ in blocks(CHAIN)) <= 150
