# SPDX-License-Identifier: Apache-2.0
"""Volume nodes to images and back. A node's array has the axes k, j, i; its matrix maps i, j, k to RAS mm."""
from typing import Any

import numpy as np
import vtk
from vtk.util import numpy_support


def _matrix(node: Any, getter: str) -> Any:
    matrix = vtk.vtkMatrix4x4()
    getattr(node, getter)(matrix)
    return np.array([[matrix.GetElement(row, column) for column in range(4)] for row in range(4)])


def array_of(node: Any) -> Any:
    """The node's voxels as a view (k, j, i). ValueError for a node without voxels and for colour images."""
    data = node.GetImageData()
    scalars = data.GetPointData().GetScalars() if data is not None else None
    if scalars is None:
        raise ValueError(f"{node.GetName()}: has no voxels yet")
    if scalars.GetNumberOfComponents() != 1:
        raise ValueError(f"{node.GetName()}: has {scalars.GetNumberOfComponents()} components a voxel, must have 1: "
                         "choose one channel")
    return numpy_support.vtk_to_numpy(scalars).reshape(tuple(reversed(data.GetDimensions())))


def image_of(node: Any, image_class: Any, ignore_transform: bool = False) -> Any:
    """The volume of a node as an intrawarp.Image, a copy. A linear parent transform counts as part of its geometry.

    Args:
        node: a vtkMRMLScalarVolumeNode.
        image_class: intrawarp.Image.
        ignore_transform: the node's own grid, whatever transform it is under (a moving volume that already shows a
            result).

    Raises:
        ValueError: no voxels, several components, a parent transform that is not linear, or shears the grid.
    """
    affine = _matrix(node, "GetIJKToRASMatrix")
    parent = None if ignore_transform else node.GetParentTransformNode()
    if parent is not None:
        to_world = vtk.vtkMatrix4x4()
        if not parent.IsTransformToWorldLinear():
            raise ValueError(f"{node.GetName()}: is under a transform that is not linear; harden or remove it first")
        parent.GetMatrixTransformToWorld(to_world)
        world = np.array([[to_world.GetElement(row, column) for column in range(4)] for row in range(4)])
        affine = world @ affine
    return image_class(np.array(array_of(node)), axes="zyx", affine=affine, space="RAS")


def show_image(image: Any, node: Any) -> None:
    """Puts an intrawarp.Image into a scalar volume node; the node's memory is used again where size and type allow."""
    values = np.ascontiguousarray(image.values)
    nz, ny, nx = values.shape
    data = node.GetImageData()
    scalars = data.GetPointData().GetScalars() if data is not None else None
    fits = scalars is not None and data.GetDimensions() == (nx, ny, nz) and \
        numpy_support.vtk_to_numpy(scalars).dtype == values.dtype
    if fits:
        numpy_support.vtk_to_numpy(scalars).reshape(values.shape)[...] = values
    else:
        data = vtk.vtkImageData()
        data.SetDimensions(nx, ny, nz)
        scalars = numpy_support.numpy_to_vtk(values.reshape(-1), deep=True)
        scalars.SetName("ImageScalars")
        data.GetPointData().SetScalars(scalars)
        node.SetAndObserveImageData(data)
    geometry = image.geometry
    signs = np.array([-1.0, -1.0, 1.0])
    axes = np.asarray(geometry.direction_xyz).reshape(3, 3) * signs[:, None]
    matrix = vtk.vtkMatrix4x4()
    for row in range(3):
        for column in range(3):
            matrix.SetElement(row, column, float(axes[row, column] * geometry.spacing_xyz[column]))
        matrix.SetElement(row, 3, float(geometry.origin_xyz[row] * signs[row]))
    node.SetIJKToRASMatrix(matrix)
    scalars.Modified()
    data.Modified()
    node.Modified()
