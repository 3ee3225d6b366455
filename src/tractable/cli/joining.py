"""Processes that share one fit: how they find each other, and how they end together."""

import os
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import typer

from tractable.cli.terminal import FAULT, say
from tractable.core.errors import SettingsError
from tractable.engine.sharding import CHAINS, over

PATIENCE = 300.0  # seconds that a process waits for all others to join
LEAVING = 20  # seconds that a process which failed alone waits for the other processes before it ends
# The environment variables in which MPI and SLURM say how many processes they started.
COUNTS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
ADDRESS = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")  # environment variables of torchrun and similar launchers


def join_others(given: Mapping[str, Any]) -> tuple[int | str | None, bool]:
    """Join the other processes of the run, if --mesh is given.

    Returns:
        The value of --mesh; and whether this process prints and writes for all.
    """
    mesh = given["mesh"]
    if mesh is not None and mesh != "auto" and not mesh.isdecimal():
        raise SettingsError(f"--mesh expects a number of devices, or auto for all; got {mesh!r}.")
    place = place_of(mesh, given["coordinator"], given["processes"], given["process"])
    if mesh is None:
        return None, True
    return "auto" if mesh == "auto" else int(mesh), join(place)


def place_of(mesh: object, coordinator: str | None, processes: int | None, process: int | None) -> dict[str, Any]:
    """Arguments of ``jax.distributed.initialize``, from the options or the environment; {} if neither has them."""
    environment, devices = os.environ, None
    if (absent := (coordinator, processes, process).count(None)) < 3 and (absent or mesh is None):
        raise SettingsError("--mesh, --coordinator HOST:PORT, --processes N and --process I go together: give all.")
    number = environment.get("RANK", environment.get("JOB_COMPLETION_INDEX"))  # Kubernetes' indexed jobs set the latter
    try:
        if coordinator is None:
            if number is None or not all(name in environment for name in ADDRESS):
                return {}
            host, port, count = (environment[name] for name in ADDRESS)
            # If torchrun's own agent listens at this port, JAX takes the next one.
            coordinator = f"{host}:{int(port) + (environment.get('TORCHELASTIC_USE_AGENT_STORE') == 'True')}"
            processes, process = int(count), int(number)
            if int(environment.get("LOCAL_WORLD_SIZE", 1)) > 1 and "JAX_LOCAL_DEVICE_IDS" not in environment:
                devices = [int(environment.get("LOCAL_RANK", ""))]
        host, _, port = coordinator.rpartition(":")
        if not host or not 0 < int(port) < 1 << 16 or not 0 <= int(process or 0) < int(processes or 0):
            raise ValueError(f"process {process} of {processes} at {coordinator!r}")
    except ValueError as error:
        raise SettingsError(
            "Expected HOST:PORT of process 0 (--coordinator, or MASTER_ADDR and MASTER_PORT), and the number of this "
            f"process (--process, or RANK), from 0 to --processes (or WORLD_SIZE) minus 1; got {error}."
        ) from error
    place = {"coordinator_address": coordinator, "num_processes": processes, "process_id": process}
    return place | {"local_device_ids": devices, "cluster_detection_method": "deactivate"}


def join(place: dict[str, Any]) -> bool:
    """Join the other processes of this run; return whether this process prints and writes for all.

    It must be called before anything is computed. If ``place`` is empty, JAX looks for the other processes: it knows
    SLURM, Open MPI before version 5, Cloud TPU and, with the package kubernetes, indexed jobs. If JAX finds none, this
    process runs alone.
    """
    counts = [int(os.environ[name]) for name in COUNTS if name in os.environ]
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and "JOB_COMPLETION_INDEX" not in os.environ
    if not place and (max(counts) == 1 if counts else in_pod):
        return True
    # JAX aborts the whole process at its own timeout, which is therefore made longer than ``PATIENCE``. While JAX
    # waits, it does not react to Ctrl-C, so it waits in a thread.
    timeouts: dict[str, Any] = {"initialization_timeout": int(10 * PATIENCE), "shutdown_timeout_seconds": LEAVING}
    faults: list[Exception] = []

    def initialize() -> None:
        try:
            jax.distributed.initialize(**place, **timeouts)
        except Exception as error:
            faults.append(error)

    thread = threading.Thread(target=initialize, daemon=True)
    thread.start()
    try:
        thread.join(PATIENCE)
    except KeyboardInterrupt:
        os._exit(130)  # the thread cannot be ended in another way
    if thread.is_alive():
        address = place.get("coordinator_address", "the coordinator")
        say(
            f"The processes of this run did not all meet at {address} within {PATIENCE:g} seconds. Start all of them, "
            "and check that this is the address of process 0 and that the other processes can reach it.",
            "red",
        )
        os._exit(FAULT)
    if faults and (place or counts or not isinstance(faults[0], ValueError)):
        raise SettingsError(
            f"This process cannot join the others: {str(faults[0]).splitlines()[0]} Give --processes, --process, and "
            "--coordinator with a free port of process 0."
        ) from faults[0]
    if faults:
        return True
    first, nothing = jax.process_index() == 0, os.open(os.devnull, os.O_WRONLY)
    sys.stdout = os.fdopen(os.dup(1) if first else nothing, "w", buffering=1)
    os.dup2(nothing, 1)  # Gloo, JAX's library for messages between processes, prints to this descriptor
    if not first:
        warnings.simplefilter("ignore")
    return first


def agree(part: Callable[[], Any]) -> Any:
    """The value of ``part()``, once every process has evaluated its own ``part()``.

    If a process fails or exits, all processes end with the largest exit code. A process does not print its error if
    process 0 has an error too.
    """
    if not jax.distributed.is_initialized():
        return part()
    fault, code, value = None, 0, None
    try:
        value = part()
    except typer.Exit as error:
        code = error.exit_code
    except Exception as error:
        fault, code = error, FAULT
    placement = over("auto", CHAINS)
    codes = placement.gather(code)
    first = [device.process_index for device in placement.mesh.devices.flat].index(0)
    if fault is not None and (jax.process_index() == 0 or codes[first] != FAULT):
        raise fault
    if codes.max():
        raise typer.Exit(int(codes.max()))
    return value
