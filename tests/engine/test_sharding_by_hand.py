"""Rows over a mesh of one device, by hand; what several devices add is in test_mesh.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from tractable.core.batches import Plan
from tractable.core.errors import SettingsError
from tractable.core.model import Data
from tractable.engine.sharding import ROWS, SHARDS, OverDevices, over

pytestmark = pytest.mark.test

ALL = PartitionSpec()
Y = np.arange(2.0, 45.0)  # of 43 rows, which no number of shards divides


def rows_over() -> OverDevices:
    return over(1, ROWS)


@pytest.mark.parametrize("rows", [22, 20])
def test_a_batch_from_file_is_cut_into_shards_of_neighbours(rows):
    """Of 32 places in 16 shards of two the last have no say; each row's number is its place in the batch."""
    mesh, plan = rows_over(), Plan(43, 22)
    starts = np.array([[[[30]]]])  # (chain, group, block, step)
    read = mesh.read(Data(Y, given=np.stack([Y, -Y], 1), weights=np.where(Y == 9, 2.0, 1.0)), plan, starts, 1)

    def windowed(read, rows):
        batch = mesh.windowed(jax.tree.map(lambda a: a[0, 0, 0, 0], read), plan, rows, 0)
        return *batch.data, batch.mask, batch.places

    program = jax.jit(mesh.map_devices(windowed, (mesh.rows_spec(True), ALL), (ALL, ALL, ALL, ALL)))
    data, given, mask, places = (np.asarray(a).reshape(2 * SHARDS, -1) for a in program(read, jnp.asarray(rows)))
    np.testing.assert_array_equal(given, data * [1, -1])
    data, mask, places = data[:, 0], mask[:, 0], places[:, 0]
    assert places.tolist() == list(range(SHARDS * 2))
    np.testing.assert_array_equal(data[:13], Y[30:])
    np.testing.assert_array_equal(data[13:32], Y[:19])  # round again
    np.testing.assert_array_equal(mask[:rows], np.where(data[:rows] == 9, 2.0, 1.0))
    assert not mask[rows:].any()


def test_chains_by_themselves():
    x = jnp.arange(12.0).reshape(3, 4)
    found = jax.jit(lambda *args: rows_over().each_chain(lambda a, b: (a * b, jnp.sum(a)), *args))(x, x[:, 0] + 1)
    np.testing.assert_allclose(found[0], x * (x[:, :1] + 1))
    np.testing.assert_allclose(found[1], x.sum(1))
    whole = jax.jit(lambda n: rows_over().each_chain(lambda a: a + 1, n))(jnp.arange(3))
    assert whole.tolist() == [1, 2, 3]


def test_what_the_only_process_says():
    assert rows_over().gather(7).tolist() == [7] and rows_over().is_writer and not rows_over().many_processes


@pytest.mark.parametrize(("devices", "fixed"), [(3, False), (4, True), (8, True), (16, False)])
def test_numbers_of_devices_whose_sums_have_one_order(devices, fixed):
    mesh = Mesh(np.array(jax.devices() * devices, dtype=object), (ROWS,))
    if fixed:
        assert over(mesh, ROWS).shards_here * devices == SHARDS
    else:
        with pytest.raises(SettingsError, match=f"rows on 1, 2, 4 or 8 devices; got {devices}"):
            over(mesh, ROWS)
    assert over(mesh, ROWS, reproducible=False).shards == devices


def test_what_lay_over_devices_is_brought_to_one():
    tree = {"key": jax.random.key(3), "a": jnp.arange(3.0)}
    near = rows_over().collect(rows_over().spread(tree))
    np.testing.assert_array_equal(jax.random.key_data(near["key"]), jax.random.key_data(tree["key"]))
    assert near["key"].dtype == tree["key"].dtype and near["a"].tolist() == [0, 1, 2]
