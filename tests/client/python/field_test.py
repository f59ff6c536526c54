# SPDX-License-Identifier: Apache-2.0
"""Points through fields on this side: against formulae, not against the code under test."""
import numpy as np
import pytest

import intrawarp as iw
from intrawarp import Field, Geometry, v1

RANDOM = np.random.default_rng(7)


def grid(size=(6, 5, 4), seed=1):
    direction, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))
    return Geometry(size, (1.5, 2.0, 3.0), (-4.0, 7.0, 20.0), direction)


def linear_field(geometry, matrix, shift, encoding="float32", **more):
    """The displacement matrix p + shift - p at each voxel."""
    nx, ny, nz = geometry.size_xyz
    out = np.zeros((nz, ny, nx, 3), np.float32)
    for k in range(nz):
        for j in range(ny):
            for i in range(nx):
                p = geometry.index_to_physical([i, j, k])
                out[k, j, i] = matrix @ p + shift - p
    return Field(out, geometry, encoding, **more)


MATRIX = np.eye(3) + 0.05 * RANDOM.normal(size=(3, 3))
SHIFT = np.array([1.0, -2.0, 0.5])
AFFINE = np.eye(4)
AFFINE[:3, :3], AFFINE[:3, 3] = MATRIX, SHIFT


def inner_points(geometry, count=200):
    return geometry.index_to_physical(RANDOM.uniform(0, np.array(geometry.size_xyz) - 1, (count, 3)))


def test_a_linear_map_is_exact_between_voxels():
    geometry = grid()
    points = inner_points(geometry)
    mapped = linear_field(geometry, MATRIX, SHIFT).map_points(points)
    assert np.allclose(mapped, points @ MATRIX.T + SHIFT, atol=1e-5)


def test_one_voxel_moved_moves_its_own_point():
    """(z, y, x, 3) in memory, components x, y, z."""
    geometry = grid()
    values = np.zeros((4, 5, 6, 3), np.float32)
    values[1, 2, 3] = (10, 20, 30)
    field = Field(values, geometry, "float32")
    centre = geometry.index_to_physical([3, 2, 1])
    assert np.allclose(field.map_points(centre), centre + (10, 20, 30))
    assert np.allclose(field.map_points(geometry.index_to_physical([1, 2, 3])), geometry.index_to_physical([1, 2, 3]))
    halfway = geometry.index_to_physical([3.5, 2, 1])
    assert np.allclose(field.map_points(halfway), halfway + (5, 10, 15))
    assert (field.array_xyz[3, 2, 1] == (10, 20, 30)).all()


def test_shapes_and_spaces():
    geometry = grid()
    field = linear_field(geometry, MATRIX, SHIFT)
    points = inner_points(geometry, 6)
    assert field.map_points(points[0]).shape == (3,)
    assert field.map_points(points.reshape(2, 3, 3)).shape == (2, 3, 3)
    assert field.map_points(points[:0]).shape == (0, 3)
    flip = np.array([-1.0, -1.0, 1.0])
    assert np.allclose(field.map_points(points * flip, space="RAS"), field.map_points(points) * flip)
    assert np.allclose(field.map_points(points.tolist()), field.map_points(points))
    for bad in (5.0, [1, 2], np.zeros((3, 2)), "x"):
        with pytest.raises(ValueError):
            field.map_points(bad)
    with pytest.raises(iw.GeometryError, match="space='LPS'"):
        field.map_points(points, space="world")


def test_outside_the_affine_part_maps_or_nothing():
    geometry = grid()
    far = geometry.index_to_physical([[-3.0, 2, 2], [2, 2, 9.0]])
    assert np.isnan(linear_field(geometry, MATRIX, SHIFT).map_points(far)).all()
    known = linear_field(geometry, MATRIX, SHIFT, affine=AFFINE)
    assert np.allclose(known.map_points(far), far @ MATRIX.T + SHIFT)
    # Within half a voxel of the outermost centres the affine part goes on, too.
    edge = geometry.index_to_physical([[-0.4, 2, 2], [5.4, 4.4, 3.4]])
    assert np.allclose(known.map_points(edge), edge @ MATRIX.T + SHIFT, atol=1e-5)
    assert np.isnan(known.map_points([np.nan, 0, 0])).any()


def test_a_strided_field_covers_its_domain():
    domain = grid((13, 11, 9))
    strided = domain.strided((4, 4, 4))
    field = linear_field(strided, MATRIX, SHIFT, affine=AFFINE, domain=domain)
    points = inner_points(domain)
    assert np.allclose(field.map_points(points), points @ MATRIX.T + SHIFT, atol=1e-5)


@pytest.mark.parametrize("encoding", ["int16", "float16"])
def test_16_bits_decode(encoding):
    geometry = grid()
    exact = linear_field(geometry, MATRIX, SHIFT)
    scale = float(np.abs(exact.array).max()) / 32767
    raw = np.rint(exact.array / scale).astype(np.int16) if encoding == "int16" else exact.array.astype(np.float16)
    field = Field(raw, geometry, encoding, scale=scale if encoding == "int16" else 0)
    bound = scale if encoding == "int16" else 0.02
    assert np.abs(field.array - exact.array).max() <= bound
    points = inner_points(geometry)
    assert np.abs(field.map_points(points) - exact.map_points(points)).max() <= bound
    with pytest.raises(ValueError):
        field.array[0, 0, 0, 0] = 1


def test_inverse_points():
    geometry = grid()
    field = linear_field(geometry, MATRIX, SHIFT, affine=AFFINE)
    points = inner_points(geometry)
    assert np.allclose(field.inverse_points(field.map_points(points)), points, atol=1e-3)
    folded = np.zeros((4, 5, 6, 3), np.float32)
    folded[..., 0] = -50 * np.arange(6)
    assert np.isnan(Field(folded, geometry, "float32").inverse_points(points)).any()


def basis(x):
    """The centred cubic B-spline."""
    x = abs(x)
    return (4 - 6 * x**2 + 3 * x**3) / 6 if x < 1 else (2 - x) ** 3 / 6 if x < 2 else 0.0


def test_a_control_grid_is_the_sum_of_its_splines():
    geometry = grid((7, 6, 5))
    coefficients = RANDOM.normal(size=(5, 6, 7, 3)).astype(np.float32)
    field = Field(coefficients, geometry, "control", affine=AFFINE)
    for _ in range(20):
        index = RANDOM.uniform(1, np.array(geometry.size_xyz) - 2)
        u = np.zeros(3)
        for k in range(5):
            for j in range(6):
                for i in range(7):
                    u += coefficients[k, j, i] * basis(index[0] - i) * basis(index[1] - j) * basis(index[2] - k)
        p = geometry.index_to_physical(index)
        assert np.allclose(field.map_points(p), MATRIX @ (p + u) + SHIFT, atol=1e-5)
    outside = geometry.index_to_physical([0.5, 3, 2])
    assert np.allclose(field.map_points(outside), MATRIX @ outside + SHIFT)
    dense = field.displacement(grid((4, 4, 4)))
    assert dense.is_dense and np.allclose(
        dense.array[1, 2, 3] + dense.geometry.index_to_physical([3, 2, 1]),
        field.map_points(dense.geometry.index_to_physical([3, 2, 1])),
        atol=1e-4,
    )


def test_a_slice_has_one_control_point_in_z():
    geometry = Geometry((6, 6, 1), (4, 4, 1), (0, 0, 0))
    field = Field(np.ones((1, 6, 6, 3), np.float32), geometry, "control")
    assert np.allclose(field.map_points([8.0, 8.0, 0.0]), [9.0, 9.0, 1.0])
    assert np.allclose(field.map_points([8.0, 8.0, 3.0]), [8.0, 8.0, 3.0])


def test_a_velocity_flows():
    """v(x) = M x has exp(v)(x) = exp(M) x."""
    geometry = Geometry((9, 9, 9), (2, 2, 2), (-8, -8, -8))
    rate = np.array([[0.0, -0.2, 0.0], [0.2, 0.0, 0.0], [0.0, 0.0, 0.1]])
    nodes = geometry.index_to_physical(np.stack(np.meshgrid(*[np.arange(9)] * 3, indexing="ij"), axis=-1))
    velocity = np.transpose(nodes @ rate.T, (2, 1, 0, 3)).astype(np.float32)
    field = Field(np.ascontiguousarray(velocity), geometry, "velocity")
    angle, points = 0.2, RANDOM.uniform(-3, 3, (50, 3))
    exact = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, np.exp(0.1)]])
    assert np.allclose(field.map_points(points), points @ exact.T, atol=1e-3)


def test_headers_that_contradict_themselves():
    from intrawarp.field import field_bytes

    geometry = grid().to_proto()
    good = v1.FieldHeader(geometry=geometry, encoding=v1.FIELD_ENCODING_FLOAT32, total_bytes=6 * 5 * 4 * 12)
    assert field_bytes(good) == good.total_bytes
    for change in (
        {"total_bytes": 5},
        {"total_bytes": 2**60},
        {"encoding": 77},
        {"geometry": v1.Geometry()},
        {"encoding": v1.FIELD_ENCODING_INT16, "total_bytes": 6 * 5 * 4 * 6, "scale": float("nan")},
    ):
        bad = v1.FieldHeader()
        bad.CopyFrom(good)
        for name, value in change.items():
            if name == "geometry":
                bad.geometry.CopyFrom(value)
            else:
                setattr(bad, name, value)
        with pytest.raises(iw.errors.InternalError):
            field_bytes(bad)


def test_simpleitk_gets_the_field_as_it_lies(monkeypatch):
    import sys
    import types

    class Made:
        def SetSpacing(self, value):
            self.spacing = value

        def SetOrigin(self, value):
            self.origin = value

        def SetDirection(self, value):
            self.direction = value

    def from_array(array, isVector=False):
        made = Made()
        made.array, made.is_vector = array, isVector
        return made

    module = types.ModuleType("SimpleITK")
    module.GetImageFromArray = from_array
    module.DisplacementFieldTransform = lambda image: ("transform", image)
    monkeypatch.setitem(sys.modules, "SimpleITK", module)
    field = linear_field(grid(), MATRIX, SHIFT)
    kind, made = field.to_sitk()
    # sitkVectorFloat64, as DisplacementFieldTransform takes it; the direction row by row.
    assert kind == "transform" and made.is_vector and made.array.dtype == np.float64
    assert np.allclose(made.array, field.array) and made.spacing == field.geometry.spacing_xyz
    assert np.allclose(np.reshape(made.direction, (3, 3)), field.geometry.direction_xyz)
    with pytest.raises(iw.InvalidArgument, match="displacement"):
        Field(np.zeros((4, 5, 6, 3), np.float32), grid(), "velocity").to_sitk()
