# SPDX-License-Identifier: Apache-2.0
"""Volume nodes to images and back, in every orientation."""
import itertools

import mrml
import numpy as np
import pytest
import vtk

import intrawarp
from IntrawarpLib import grid_transform, volumes

VOXELS = np.random.default_rng(4).integers(-1000, 1000, (5, 4, 3)).astype(np.int16)


def node_of(image, name="volume"):
    node = mrml.ScalarVolumeNode(name)
    volumes.show_image(image, node)
    return node


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("flips", list(itertools.product((1, -1), repeat=3)))
def test_every_orientation_comes_back(order, flips):
    direction = np.zeros((3, 3))
    for column, row in enumerate(order):
        direction[row, column] = flips[column]
    image = intrawarp.Image(VOXELS, axes="zyx", space="LPS", spacing_xyz=(0.7, 1.5, 2.0), origin_xyz=(-10.0, 20.0, 5.0),
                            direction_xyz=direction)
    back = volumes.image_of(node_of(image), intrawarp.Image)
    assert np.array_equal(back.array, VOXELS)
    corner = np.array([[2, 3, 4]])
    assert back.geometry.index_to_physical(corner) == pytest.approx(image.geometry.index_to_physical(corner))


def test_values_are_rescaled_on_the_way_to_the_node():
    image = intrawarp.Image(VOXELS, axes="zyx", space="LPS", spacing_xyz=(1, 1, 1), origin_xyz=(0, 0, 0), rescale=(0.5, 3))
    assert volumes.array_of(node_of(image)) == pytest.approx(0.5 * VOXELS + 3)


def test_a_second_image_of_one_kind_takes_the_same_memory():
    image = intrawarp.Image(VOXELS, axes="zyx", space="LPS", spacing_xyz=(1, 1, 1), origin_xyz=(0, 0, 0))
    node = node_of(image)
    data = node.GetImageData()
    volumes.show_image(intrawarp.Image(VOXELS + 1, axes="zyx", geometry=image.geometry), node)
    assert node.GetImageData() is data
    assert np.array_equal(volumes.array_of(node), VOXELS + 1)


def test_a_linear_parent_is_part_of_the_geometry():
    image = intrawarp.Image(VOXELS, axes="zyx", space="LPS", spacing_xyz=(1, 1, 1), origin_xyz=(0, 0, 0))
    node, parent = node_of(image), mrml.LinearTransformNode("parent")
    shift = np.eye(4)
    shift[:3, 3] = 5, -6, 7
    grid_transform.set_linear(parent, np.linalg.inv(shift))
    node.SetAndObserveTransformNodeID(parent.GetID())
    assert volumes.image_of(node, intrawarp.Image).geometry.origin_xyz == pytest.approx((5, -6, 7))
    assert volumes.image_of(node, intrawarp.Image, ignore_transform=True).geometry.origin_xyz == pytest.approx((0, 0, 0))


def test_a_parent_that_bends_is_refused():
    image = intrawarp.Image(VOXELS, axes="zyx", space="LPS", spacing_xyz=(1, 1, 1), origin_xyz=(0, 0, 0))
    node = node_of(image)
    node.SetAndObserveTransformNodeID(mrml.GridTransformNode("bends").GetID())
    with pytest.raises(ValueError, match="not linear"):
        volumes.image_of(node, intrawarp.Image)


def test_a_node_without_voxels_and_a_colour_image_are_refused():
    node = mrml.ScalarVolumeNode("empty")
    with pytest.raises(ValueError, match="no voxels"):
        volumes.image_of(node, intrawarp.Image)
    colour = vtk.vtkImageData()
    colour.SetDimensions(2, 2, 2)
    colour.AllocateScalars(vtk.VTK_UNSIGNED_CHAR, 3)
    node.SetAndObserveImageData(colour)
    with pytest.raises(ValueError, match="3 components"):
        volumes.image_of(node, intrawarp.Image)
