"""What a mesh costs: seconds a step over devices of this machine, beside the same run without a mesh.

    python benchmarks/scale.py [--rows 1000000] [--columns 50] [--steps 1000]

SGLD on a logistic regression with rows in memory, by the size of a batch: without a mesh (XLA's threads share a step),
and with the batch's rows over 1, 2 and 4 devices of this host. ``fast`` is ``reproducible=False``.
Every figure is a process of its own, and the time of its main run without the first block, which compiles.
"""

import argparse
import json
import os
import subprocess
import sys

import numpy as np
from measuring import say_where, table


def child(rows: int, columns: int, steps: int, batch: int, devices: int, reproducible: bool) -> dict:
    """Seconds a step, and the last position."""
    import jax
    import numpyro.distributions as dist

    import tractable as tr
    from tractable import run as loop

    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, columns)).astype(np.float32)
    y = (rng.random(rows) < 1 / (1 + np.exp(-x @ rng.normal(size=columns) / columns**0.5))).astype(np.float32)
    model = tr.Model(
        {"w": dist.Normal(np.zeros(columns, np.float32), 1.0).to_event(1)},
        lambda params, x: dist.Bernoulli(logits=x @ params["w"]),
    )
    method = tr.SGLD(chains=1, draws=steps, warmup=0, thin=1, batch_size=batch, step_size=1e-8, start="random")
    mesh = None if devices == 0 else jax.make_mesh((devices,), ("row",))
    posterior = tr.infer(
        model, tr.Data(y, given=x), method, verify=None, progress=False, mesh=mesh, reproducible=reproducible
    )
    last = np.asarray(posterior.unconstrained)[0, -1]
    return {"seconds": posterior.seconds["drawing"] / (steps - loop.BLOCK), "last": last.tobytes().hex()}


def measured(*asked: object, devices: int) -> dict:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={max(devices, 1)}"
    done = subprocess.run(
        [sys.executable, __file__, "--child", json.dumps(asked)], env=os.environ | {"XLA_FLAGS": flags},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(child(*json.loads(asked.child))))
        return
    say_where(f"SGLD over a mesh: {asked.rows:,} rows of {asked.columns} columns")
    shown = []
    for batch in (1_000, 20_000, 200_000):
        found = {}
        for devices, fixed in ((0, True), (1, True), (2, True), (4, True), (2, False)):
            sent = (asked.rows, asked.columns, asked.steps, batch, devices, fixed)
            found[devices, fixed] = measured(*sent, devices=devices)
        for (devices, fixed), one in found.items():
            name = "none" if devices == 0 else f"{devices}" if fixed else f"{devices}, fast"
            ratio = one["seconds"] / found[0, True]["seconds"]
            same = "–" if devices == 0 else "yes" if one["last"] == found[2, True]["last"] else "no"
            shown.append([f"{batch:,}", name, f"{1e3 * one['seconds']:.3g}", f"{ratio:.2f}", same])
    table(["rows of a batch", "devices", "ms a step", "to no mesh", "bits of 2 devices"], shown)


if __name__ == "__main__":
    main()
