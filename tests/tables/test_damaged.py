"""Files of data that were damaged, or claim what they do not hold, are refused in a sentence, or read as they were."""

import io
import zipfile

import numpy as np
import pytest

import tractable as tr
from tractable.core.errors import DataError
from tractable.tables.files import read_rows

pytestmark = pytest.mark.quick

ROWS = np.random.default_rng(0).normal(size=(30, 2))
CLAIMS = (10**12, 2)  # 16 terabytes


def header(shape):
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return out.getvalue()


def archive(content, compression):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as file:
        file.writestr("x.npy", content)
    return out.getvalue()


def saved(kind):
    array = header(ROWS.shape) + ROWS.tobytes()
    return {"npy": array, "stored.npz": archive(array, 0), "deflated.npz": archive(array, 8)}[kind]


def through_data(path):
    read = tr.Data(path).y
    return np.asarray(read["x"] if isinstance(read, dict) else read)


def through_rows(path):
    return np.asarray(read_rows(path).values)


@pytest.mark.parametrize("read", [through_data, through_rows])
@pytest.mark.parametrize("kind", ["stored.npz", "deflated.npz"])
def test_archives_are_refused_or_read_as_they_were(tmp_path, kind, read):
    """An .npy has no checksum; every member of an archive has one, and it is looked at, mapped or not."""
    whole, rng, path, refused = saved(kind), np.random.default_rng(1), tmp_path / kind, 0
    for cut in rng.random(100) < 0.3:
        place = int(rng.integers(len(whole)))
        flipped = whole[:place] + bytes([whole[place] ^ (1 << int(rng.integers(8)))]) + whole[place + 1 :]
        path.write_bytes(whole[:place] if cut else flipped)
        try:
            np.testing.assert_array_equal(read(path), ROWS)
        except DataError as error:
            refused += 1
            assert kind in str(error) and len(str(error)) < 400
    assert refused > 50


@pytest.mark.parametrize("read", [through_data, through_rows])
@pytest.mark.parametrize("name, content", {
    "empty.npy": b"", "empty.npz": b"", "claims.npy": header(CLAIMS), "stored.npz": archive(header(CLAIMS), 0),
    "deflated.npz": archive(header(CLAIMS), 8), "beyond.npy": header((2**62, 2)), "below.npy": header((-3, 2)),
    "beyond.npz": archive(header((2**62, 2)), 0), "version.npy": b"\x93NUMPY\x09" + header(CLAIMS)[7:],
    "version.npz": archive(b"\x93NUMPY\x09" + header(CLAIMS)[7:], 0),
}.items())  # fmt: skip
def test_files_that_claim_what_they_do_not_hold(tmp_path, name, content, read):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=name):
        read(path)
