# SPDX-License-Identifier: Apache-2.0
"""The four traps of a grid transform, the order of the chain, and memory that is used again."""
import mrml
import numpy as np
import pytest
import vtk
from vtk.util import numpy_support

import intrawarp
from IntrawarpLib import grid_transform

# Odd sizes, unequal spacings, an oblique left-handed grid.
TURN = np.array([[0.8, -0.6, 0.0], [0.6, 0.8, 0.0], [0.0, 0.0, -1.0]])
GEOMETRY = intrawarp.Geometry((7, 5, 9), (8.0, 6.0, 7.0), (-30.0, 12.0, 40.0), TURN)
AFFINE = np.array([[0.96, -0.1, 0.02, 3.0], [0.1, 0.97, 0.0, -2.0], [-0.01, 0.03, 1.04, 5.0], [0, 0, 0, 1.0]])


def deformation(points):
    """u, LPS mm: another value along each axis, so that an exchange of axes or signs shows."""
    x, y, z = (points[..., axis] for axis in range(3))
    return np.stack([10.0 + 0.02 * z, 0.05 * x - 4.0, 0.03 * y + 0.02 * x], axis=-1)


def dense_field():
    nx, ny, nz = GEOMETRY.size_xyz
    k, j, i = np.meshgrid(np.arange(nz), np.arange(ny), np.arange(nx), indexing="ij")
    points = GEOMETRY.index_to_physical(np.stack([i, j, k], axis=-1))
    mapped = (points + deformation(points)) @ AFFINE[:3, :3].T + AFFINE[:3, 3]
    return intrawarp.Field((mapped - points).astype(np.float32), GEOMETRY, "float32", affine=AFFINE, domain=GEOMETRY)


def inner_points(count=200, seed=3):
    """RAS mm, within the grid."""
    index = np.random.default_rng(seed).uniform(0.0, 1.0, (count, 3)) * (np.array(GEOMETRY.size_xyz) - 1)
    return GEOMETRY.index_to_physical(index) * (-1, -1, 1)


def chain():
    return grid_transform.TransformChain(mrml.LinearTransformNode("affine"), mrml.GridTransformNode("grid"),
                                         mrml.OrientedGridTransform())


def largest_error(nodes, field):
    points = inner_points()
    seen = np.array([nodes.linear_node.from_world(point) for point in points])
    return np.abs(seen - field.map_points(points, space="RAS")).max()


def test_a_point_of_the_world_goes_where_the_result_maps_it():
    nodes, field = chain(), dense_field()
    nodes.update(field, AFFINE)
    assert largest_error(nodes, field) < 1e-4


def test_the_moving_volume_is_under_the_linear_node_and_that_under_the_grid():
    nodes, moving = chain(), mrml.ScalarVolumeNode("moving")
    nodes.place(moving)
    assert moving.GetParentTransformNode() is nodes.linear_node
    assert nodes.linear_node.GetParentTransformNode() is nodes.grid_node
    assert nodes.grid_node.GetParentTransformNode() is None


def test_the_other_order_of_the_chain_is_another_map():
    nodes, field = chain(), dense_field()
    nodes.update(field, AFFINE)
    points = inner_points()
    wrong = np.array([nodes.grid_node.from_parent(nodes.linear_node.from_parent(point)) for point in points])
    assert np.abs(wrong - field.map_points(points, space="RAS")).max() > 0.5


def test_displacements_are_the_scalars():
    nodes = chain()
    nodes.update(dense_field(), AFFINE)
    data = nodes.grid.image.GetPointData()
    assert data.GetScalars() is not None and data.GetScalars().GetNumberOfComponents() == 3
    assert data.GetVectors() is None


def test_the_numbers_are_float32():
    nodes = chain()
    nodes.update(dense_field(), AFFINE)
    assert nodes.grid.image.GetScalarType() == vtk.VTK_FLOAT


def test_x_runs_fastest():
    nodes, field = chain(), dense_field()
    nodes.update(field, AFFINE)
    u = grid_transform.residual_displacement(field, AFFINE)
    for i, j, k in ((0, 0, 0), (6, 0, 0), (1, 4, 0), (2, 3, 8)):
        seen = [nodes.grid.image.GetScalarComponentAsFloat(i, j, k, component) for component in range(3)]
        assert seen == pytest.approx(u[k, j, i])


def test_plus_ten_millimetres_stay_plus_ten():
    """A shift of 10 mm to the patient's left (LPS +x): the moving volume's point lies 10 mm further left."""
    nodes = chain()
    geometry = intrawarp.Geometry((4, 4, 4), (10.0, 10.0, 10.0), (0.0, 0.0, 0.0))
    shift = np.zeros((4, 4, 4, 3), np.float32)
    shift[..., 0] = 10
    nodes.update(intrawarp.Field(shift, geometry, "float32"), np.eye(4))
    assert nodes.linear_node.from_world((-12.0, -13.0, 14.0)) == pytest.approx((-22.0, -13.0, 14.0))


def test_memory_is_used_again_while_the_grid_stays():
    nodes, field = chain(), dense_field()
    assert not nodes.update(field, AFFINE)
    image, before = nodes.grid.image, numpy_support.vtk_to_numpy(nodes.grid.image.GetPointData().GetScalars())
    stamp = image.GetMTime()
    assert nodes.update(field, np.eye(4))
    after = numpy_support.vtk_to_numpy(nodes.grid.image.GetPointData().GetScalars())
    assert nodes.grid.image is image and np.shares_memory(before, after)
    assert image.GetMTime() > stamp
    assert largest_error(nodes, field) < 1e-4, "the affine part is another one, the whole map the same"


def test_another_grid_is_taken_whole():
    nodes = chain()
    nodes.update(dense_field(), AFFINE)
    geometry = intrawarp.Geometry((3, 4, 5), (20.0, 20.0, 20.0), (0.0, 0.0, 0.0))
    assert not nodes.update(intrawarp.Field(np.zeros((5, 4, 3, 3), np.float32), geometry, "float32"), np.eye(4))
    assert nodes.grid.image.GetDimensions() == (3, 4, 5)
    assert nodes.linear_node.from_world((-20.0, -20.0, 20.0)) == pytest.approx((-20.0, -20.0, 20.0))


@pytest.mark.parametrize("size,spacing,limit,strides", [
    ((166, 195, 25), (1.4, 1.4, 4.0), 1000000, (1, 1, 1)),
    ((166, 195, 25), (1.4, 1.4, 4.0), 250000, (2, 2, 1)),
    ((256, 256, 256), (1.0, 1.0, 1.0), 1000000, (3, 3, 2)),
    ((512, 512, 1), (0.5, 0.5, 5.0), 100000, (2, 2, 1)),
    ((5, 4, 3), (1.0, 1.0, 1.0), 1, (3, 2, 2)),
])
def test_a_grid_is_thinned_where_its_nodes_are_closest(size, spacing, limit, strides):
    assert grid_transform.strides_for(intrawarp.Geometry(size, spacing, (0.0, 0.0, 0.0)), limit) == strides


def test_an_affine_result_leaves_a_grid_that_moves_nothing():
    nodes, field = chain(), dense_field()
    nodes.update(field, AFFINE)
    nodes.update(None, AFFINE)
    point = inner_points(1)[0]
    assert nodes.grid_node.from_parent(point) == pytest.approx(point)
    affine_ras = grid_transform.lps_matrix_to_ras(AFFINE)
    assert nodes.linear_node.from_world(point) == pytest.approx(affine_ras[:3, :3] @ point + affine_ras[:3, 3])


@pytest.mark.parametrize("displacement", [np.zeros((9, 5, 7)), np.zeros((7, 5, 9, 3)), np.full((9, 5, 7, 3), np.nan)])
def test_what_does_not_fit_is_refused(displacement):
    grid = grid_transform.GridTransform(mrml.OrientedGridTransform())
    with pytest.raises(ValueError, match="displacement"):
        grid.update(displacement, GEOMETRY)


def test_a_field_saved_for_slicer_is_the_same_map(tmp_path):
    """The NRRD that the client writes is what Slicer reads as a grid transform: displacements, to be resampled with."""
    field = dense_field()
    field.write(tmp_path / "field.nrrd")
    header = (tmp_path / "field.nrrd").read_bytes().split(b"\n\n")[0].decode()
    assert "space: left-posterior-superior" in header
    assert "kinds: vector domain domain domain" in header
