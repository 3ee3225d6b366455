"""Do the bits of a run over a mesh depend on how many devices there are? Every method, float32 and float64.

    python benchmarks/mesh_bits.py [NAME ...]

For methods that sum over rows, the rows are spread over 1, 2, 4 and 8 devices of this host; for the others, the chains
are spread over 1 and 2. ``tests/every_method.py`` has the methods and their models. Runs over several processes are in
the tests. Predicted: runs on 2, 4 and 8 devices are equal to the last bit. For most methods a run on one device, for
which XLA compiles other programs, is equal too.
"""

import os
import pathlib
import re
import subprocess
import sys
import warnings

from measuring import record

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


def counts(lines: list[tuple[str, str]]) -> dict[str, float]:
    """Figures of the printed lines, each with whether it is of float64: a case counts if it holds in both."""
    cells = [(x64, *line.strip("| \n").split(" | ")) for x64, line in lines]
    cases, refused = {c[1] for c in cells}, {c[1] for c in cells if c[3].startswith("refused")}
    off = {
        (c[1], c[0]): [float(far) for far in re.findall(r"\b[48]: ([^,]+)", c[3])] for c in cells if c[1] not in refused
    }
    over = cases - refused
    return {
        "cases": len(cases),
        "over a mesh": len(over),
        "same bits on 2, 4 and 8 devices": len(over - {name for (name, _), far in off.items() if far}),
        "EM by gradient off, float32": max(off["em by gradient", "0"], default=0.0),
    }


def main() -> None:
    if "TRACTABLE_CHILD" in os.environ:
        return looked(sys.argv[1:])
    lines = []
    for x64 in "0", "1":
        print(
            f"\nfloat{64 if x64 == '1' else 32}\n\n| method | axis | off those of two devices |\n|---|---|---|",
            flush=True,
        )
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
        given = os.environ | {"TRACTABLE_CHILD": "1", "JAX_ENABLE_X64": x64, "XLA_FLAGS": flags}
        with subprocess.Popen([sys.executable, *sys.argv], env=given, stdout=subprocess.PIPE, text=True) as child:
            for line in child.stdout or ():
                print(line, end="", flush=True)
                lines.append((x64, line))
        if child.returncode:
            sys.exit("a child failed")
    if not sys.argv[1:]:
        record(__file__, ["", "value"], list(counts(lines).items()))


if __name__ == "__main__":
    main()
