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
LEAVING = 20  # seconds that a process which failed alone waits for the others before it ends
LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")  # how many processes MPI or SLURM started
RANKED = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")  # set by torchrun and its like, beside the process's number


def join_others(given: Mapping[str, Any]) -> tuple[int | str | None, bool]:
    """What --mesh says, once this process has joined the others, and whether it speaks and writes for all."""
    mesh = given["mesh"]
    if mesh is not None and mesh != "auto" and not mesh.isdecimal():
        raise SettingsError(f"--mesh expects a number of devices, or auto for all; got {mesh!r}.")
    place = place_of(mesh, given["coordinator"], given["processes"], given["process"])
    if mesh is None:
        return None, True
    return "auto" if mesh == "auto" else int(mesh), join(place)


def place_of(mesh: object, coordinator: str | None, processes: int | None, process: int | None) -> dict[str, Any]:
    """Arguments of ``jax.distributed.initialize``, as typed or from the environment; {} if neither says."""
    environment, devices = os.environ, None
    if (lacking := (coordinator, processes, process).count(None)) < 3 and (lacking or mesh is None):
        raise SettingsError("--mesh, --coordinator HOST:PORT, --processes N and --process I go together: give all.")
    number = environment.get("RANK", environment.get("JOB_COMPLETION_INDEX"))  # the latter of Kubernetes' indexed jobs
    try:
        if coordinator is None:
            if number is None or not all(name in environment for name in RANKED):
                return {}
            host, port, count = (environment[name] for name in RANKED)
            # torchrun listens at its port itself.
            coordinator = f"{host}:{int(port) + (environment.get('TORCHELASTIC_USE_AGENT_STORE') == 'True')}"
            processes, process = int(count), int(number)
            if int(environment.get("LOCAL_WORLD_SIZE", 1)) > 1 and "JAX_LOCAL_DEVICE_IDS" not in environment:
                devices = [int(environment.get("LOCAL_RANK", ""))]
        host, _, port = coordinator.rpartition(":")
        if not host or not 0 < int(port) < 1 << 16 or not 0 <= int(process or 0) < int(processes or 0):
            raise ValueError(f"process {process} of {processes} at {coordinator!r}")
    except ValueError as error:
        raise SettingsError(
            "Expected HOST:PORT of process 0 (--coordinator, or MASTER_ADDR and MASTER_PORT), and this one's number "
            f"(--process, or RANK) from 0 to one less than --processes (or WORLD_SIZE); got {error}."
        ) from error
    place = {"coordinator_address": coordinator, "num_processes": processes, "process_id": process}
    return place | {"local_device_ids": devices, "cluster_detection_method": "deactivate"}


def join(place: dict[str, Any]) -> bool:
    """Joins the other processes of this run; returns whether this one speaks and writes for all.

    Comes before anything is computed. Without a place JAX is asked, which knows SLURM, Open MPI before 5, Cloud TPU
    and, with the package kubernetes, indexed jobs. A process that it knows no others of is alone.
    """
    counts = [int(os.environ[name]) for name in LAUNCHED if name in os.environ]
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and "JOB_COMPLETION_INDEX" not in os.environ
    if not place and (max(counts) == 1 if counts else in_pod):
        return True
    # JAX aborts the process at the end of its own patience. It hears no Ctrl-C while it waits, so a thread waits.
    patience: dict[str, Any] = {"initialization_timeout": int(10 * PATIENCE), "shutdown_timeout_seconds": LEAVING}
    faults: list[Exception] = []

    def initialize() -> None:
        try:
            jax.distributed.initialize(**place, **patience)
        except Exception as error:
            faults.append(error)

    waiting = threading.Thread(target=initialize, daemon=True)
    waiting.start()
    try:
        waiting.join(PATIENCE)
    except KeyboardInterrupt:
        os._exit(130)  # the thread cannot be ended
    if waiting.is_alive():
        where = place.get("coordinator_address", "the coordinator")
        say(
            f"The processes of this run did not all meet at {where} within {PATIENCE:g} seconds. Start every one, and "
            "check that it is the address of process 0, which the others reach.",
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
    os.dup2(nothing, 1)  # where Gloo prints
    if not first:
        warnings.simplefilter("ignore")
    return first


def agree(part: Callable[[], Any]) -> Any:
    """What ``part`` gives, once every process has done its own; if one fails or exits, all end with the largest code.

    A process is silent about its error if process 0 has one too.
    """
    if not jax.distributed.is_initialized():
        return part()
    fault, code, found = None, 0, None
    try:
        found = part()
    except typer.Exit as ended:
        code = ended.exit_code
    except Exception as error:
        fault, code = error, FAULT
    everywhere = over("auto", CHAINS)
    codes = everywhere.gather(code)
    first = [device.process_index for device in everywhere.mesh.devices.flat].index(0)
    if fault is not None and (jax.process_index() == 0 or codes[first] != FAULT):
        raise fault
    if codes.max():
        raise typer.Exit(int(codes.max()))
    return found
