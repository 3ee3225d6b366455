"""Do the bits of a run over a mesh depend on how many devices there are? Every method, float32 and float64.

    python benchmarks/mesh_bits.py [NAME ...]

For methods that sum over rows, the rows are spread over 1, 2, 4 and 8 devices of this host; for the others, the chains
are spread over 1 and 2. ``tests/every_method.py`` has the methods and their models. Runs over several processes are in
the tests. Predicted: runs on 2, 4 and 8 devices are equal to the last bit. For most methods a run on one device, for
which XLA compiles other programs, is equal too.
"""

import os
import pathlib
import subprocess
import sys
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests"))


def looked(names: list[str]) -> None:
    """Print for each method on which numbers of devices the result differs from that of two, and by how much."""
    import jax
    import numpy as np
    from every_method import CASES, numbers

    import tractable as tr
    from tractable.core.errors import SettingsError

    warnings.simplefilter("ignore")
    for name in names or CASES:
        case = CASES[name]
        counts = (1, 2, 4, 8) if case.method.sums_rows else (1, 2)
        axis = "row" if case.method.sums_rows else "chain"
        found = {}
        try:
            for count in counts:
                mesh = jax.make_mesh((count,), (axis,), devices=jax.devices()[:count])
                run = tr.infer(case.model, case.rows, case.method, seed=3, progress=False, verify=None, mesh=mesh)
                found[count] = numbers(run)
        except SettingsError as error:
            print(f"| {name} | {axis} | refused: {str(error).split('.')[0]} |", flush=True)
            continue
        off = {count: float(np.max(np.abs(found[count] - found[2]))) for count in counts if count != 2}
        apart = ", ".join(f"{count}: {far:.2g}" for count, far in off.items() if far)
        print(f"| {name} | {axis} | {apart or f'equal on {len(counts)} numbers of devices'} |", flush=True)


def main() -> None:
    if "TRACTABLE_CHILD" in os.environ:
        return looked(sys.argv[1:])
    for x64 in "0", "1":
        print(
            f"\nfloat{64 if x64 == '1' else 32}\n\n| method | axis | off those of two devices |\n|---|---|---|",
            flush=True,
        )
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
        given = os.environ | {"TRACTABLE_CHILD": "1", "JAX_ENABLE_X64": x64, "XLA_FLAGS": flags}
        if subprocess.run([sys.executable, *sys.argv], env=given, check=False).returncode:
            sys.exit("a child failed")


if __name__ == "__main__":
    main()
