"""Every method from the command line: fitted, reported, gone on with; or refused in a sentence that names what fits."""

import json

import numpy as np
import pytest
from commands import fault, run

from tractable.methods import METHODS, NUTS

pytestmark = pytest.mark.laws

FEW = {
    "draws": 20, "warmup": 20, "chains": 2, "steps": 40, "batch_size": 5, "epochs": 2, "size": 2, "samples": 2,
    "solver": "stochastic", "starts": 1,
}  # fmt: skip
OF_LADDERS = {"autoencoding", "importance-weighted", "nvil", "vimco", "wake-sleep", "reweighted-wake-sleep"}
FROM_PYTHON_ALONE = {"cavi", "online-em", "monte-carlo-em"}  # a mixture's evidence is cavi's, by --choose


def words(label: str, folder) -> list[object]:
    """What is typed after ``fit`` to run a method on something small."""
    fields = METHODS[label].__dataclass_fields__
    if label in OF_LADDERS:
        np.savez(folder / "rows.npz", x=np.random.default_rng(0).integers(0, 2, (40, 4)))
        data = [folder / "rows.npz", "--model", "vae", "--latent", "2", "--hidden", "3", "--held-out", "0"]
        if label not in ("autoencoding", "importance-weighted"):
            data = [folder / "rows.npz", "--model", "belief-network", "--latent", "2", "--held-out", "0"]
    elif label == "em":
        rows = np.random.default_rng(0).normal(size=(40, 2))
        np.savetxt(folder / "rows.csv", rows, delimiter=",", header="a,b", comments="")
        data = [folder / "rows.csv", "--model", "gaussian-mixture", "--components", "2"]
    elif label in ("inla", "microcanonical"):  # more than one parameter
        rows = np.random.default_rng(0).normal(size=(40, 2))
        np.savetxt(folder / "rows.csv", rows, delimiter=",", header="a,b", comments="")
        data = [folder / "rows.csv", "--target", "b"]
    else:
        data = ["--example", "beta-bernoulli"]
    own = {"batch_size", "steps"} if label in ("map", "mle", "laplace") else set()  # L-BFGS looks at all rows
    own |= {"warmup"} if label in OF_LADDERS else set()  # epochs there
    few = [f"{name}={value}" for name, value in FEW.items() if name in fields.keys() - own]
    return [*data, *(word for each in few for word in ("--set", each)), "--method", label]


@pytest.mark.parametrize("label", sorted(set(METHODS) - FROM_PYTHON_ALONE))
def test_a_method_is_fitted_reported_and_gone_on_with(label, tmp_path):
    out = tmp_path / "run"
    fitted = run("fit", *words(label, tmp_path), "--seed", 3, "--out", out)
    assert fitted.exit_code in (0, 3), fitted.output + fitted.stderr
    about = json.loads((out / "posterior.json").read_text())
    assert (out / "report.html").read_text(encoding="utf-8").count(about["verdict"])
    shown = run("report", out)
    assert shown.exit_code == 0 and about["verdict"] in shown.stdout
    again = run("fit", "--resume", "--out", out)
    assert again.exit_code == fitted.exit_code, again.output + again.stderr
    after = json.loads((out / "posterior.json").read_text())
    assert (after["checks"], after["title"]) == (about["checks"], about["title"])


@pytest.mark.test
@pytest.mark.parametrize("label", sorted(FROM_PYTHON_ALONE))
def test_a_method_of_other_models_is_refused_in_a_sentence(label, tmp_path):
    for model in ("glm", "gaussian-mixture", "vae"):
        data = words({"glm": NUTS.label, "gaussian-mixture": "em", "vae": "autoencoding"}[model], tmp_path)[:-2]
        sentence = fault("fit", *[w for w in data if "=" not in str(w) and w != "--set"], "--method", label)
        assert label in sentence or METHODS[label].__name__ in sentence, sentence
