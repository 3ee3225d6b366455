"""What does the order of a file's rows do to methods that read it batch by batch?

Batches of a file are windows of neighbouring rows. If the file is sorted by its target, a window is no random sample of
the rows. Averaged over the windows the gradient is unbiased, but its noise is larger, by about the ratio of the
variance between windows to that of random batches. The models are a linear regression, a coin and a mixture of two
normals. Each is learnt in memory, from a file sorted by the target, and from the file that ``tr.pack`` makes of it.

Predicted: from sorted files, SGLD's sds are too large, because of noise that its measurements in warm-up miss, and a
mean field wanders around the right position by more than it reports. Packed files give the same results as memory.

    python -W ignore benchmarks/sorted_file.py [--quick]
"""

import tempfile
from pathlib import Path

import numpy as np
import numpyro.distributions as dist
from measuring import arguments, record, say_where, table

import tractable as tr
from tractable.glm.linear import generalised_linear


def rows_of(name: str, size: int) -> np.ndarray:
    """Rows sorted by the target: (x₁, x₂, y) of a regression, flips of a coin, or numbers of a mixture."""
    rng = np.random.default_rng(0)
    if name == "regression":
        x = rng.normal(size=(size, 2))
        y = 0.5 + x @ [1.0, -0.5] + rng.normal(size=size)
        return np.column_stack([x, y])[np.argsort(y)]
    if name == "coin":
        return np.sort(rng.random(size) < 0.3).astype(np.float64)
    return np.sort(np.where(rng.random(size) < 0.4, -2, 2) + rng.normal(size=size))[:, None]


def model_of(name: str) -> object:
    if name == "regression":
        return generalised_linear(2, "normal")
    if name == "coin":
        return tr.Model({"theta": dist.Beta(5.0, 5.0)}, lambda p: dist.Bernoulli(probs=p["theta"]))
    return tr.models.gaussian_mixture(2, 1)


def data_of(name: str, rows: np.ndarray | Path, resident: bool) -> tr.Data:
    if name != "regression":
        return tr.Data(rows, resident=resident)
    whole = tr.Data(rows, resident=resident).y
    return tr.Data(whole[:, 2], whole[:, :2], resident=resident)


def draws_of(name: str, method: tr.Method, data: tr.Data) -> tuple[np.ndarray, np.ndarray, str, str]:
    """Means and sds of the unconstrained parameters, the verdict, and the report's check of the rows' order."""
    posterior = tr.infer(model_of(name), data, method, seed=0, progress=False, verify=None)
    report = posterior.report()
    told = next((f"{c.verdict}: {c.value:.3g}" for c in report.checks if c.name == "order of rows"), "nothing")
    draws = posterior.unconstrained
    if draws is None:  # a point estimate, whose components come in any order; its sds are about 1/√N
        position = np.sort(np.asarray(posterior.belief.position, np.float64))
        return position, np.full(len(position), data.size**-0.5), report.verdict, told
    flat = np.asarray(draws).reshape(-1, np.shape(draws)[-1])
    return flat.mean(0), flat.std(0), report.verdict, told


def main() -> None:
    quick = arguments(__doc__).parse_args().quick
    size, draws = (2_000, 50) if quick else (200_000, 1000)
    say_where("The order of a file's rows")
    cases = [
        ("coin", tr.SGLD(chains=4, draws=draws, batch_size=100)),
        ("regression", tr.SGLD(chains=4, draws=draws, batch_size=100)),
        ("regression", tr.BayesByBackprop(epochs=5 if quick else 20, batch_size=100)),
        ("mixture", tr.OnlineEM(epochs=2 if quick else 10, batch_size=100)),
    ]
    out = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, method) in enumerate(cases):
            rows, path = rows_of(name, size), Path(folder) / f"{number}.npy"
            np.save(path, rows)
            mean, sd, verdict, _ = draws_of(name, method, data_of(name, rows, True))
            out.append([name, type(method).__name__, "in memory", 0.0, 1.0, verdict, "nothing"])
            for where in ("sorted file", "packed"):
                source = path if where == "sorted file" else Path(tr.pack(path, path.with_suffix(""), progress=False))
                m, s, v, told = draws_of(name, method, data_of(name, source, False))
                off, ratio = np.max(np.abs(m - mean) / sd), (s / sd)[np.argmax(np.abs(np.log(s / sd)))]
                out.append([name, type(method).__name__, where, float(off), float(ratio), v, told])
    head = ["model", "method", "rows", "worst mean off, sd", "worst sd ratio", "verdict", "order"]
    table(head, out)
    record(__file__, head, out, names=3)


if __name__ == "__main__":
    main()
