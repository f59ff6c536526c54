# SPDX-License-Identifier: Apache-2.0
"""A deformation as one grid transform that is updated in place, and its affine part as a linear transform beside it.

A transform of intrawarp maps points of the fixed image to points of the moving image, in LPS mm: T(x) = A(x + u(x)). In
Slicer a node's transform "from parent" maps a point of the world to where the node's data have their value, so the chain

    moving volume  ->  linear node (from parent: A)  ->  grid node (from parent: x + u(x))  ->  world

shows the moving volume on the fixed one. The order counts: the linear node is the moving volume's parent, the grid node is
the linear node's parent.

A grid transform has four traps, each of which yields a picture that looks right until somebody measures it: the
displacements must be the *scalars* of its image (vectors are ignored, which is a silent identity), x must run fastest, the
numbers must be float32 (only these are saved), and the direction must be "from parent" (the other one has the wrong sign).
"""
from typing import Any, Optional, Tuple

import numpy as np
import vtk
from vtk.util import numpy_support

# LPS to RAS and back: the first two axes change sign.
_SIGNS = np.array([-1.0, -1.0, 1.0])


def lps_matrix_to_ras(matrix: Any) -> Any:
    """4 x 4, a map of points in LPS mm, as a map of points in RAS mm."""
    flip = np.diag([-1.0, -1.0, 1.0, 1.0])
    return flip @ np.asarray(matrix, dtype=np.float64) @ flip


def grid_points(geometry: Any) -> Any:
    """The voxel centres of an intrawarp.Geometry: (voxels, 3) float64, LPS mm, x fastest."""
    nx, ny, nz = geometry.size_xyz
    k, j, i = np.meshgrid(np.arange(nz), np.arange(ny), np.arange(nx), indexing="ij")
    return geometry.index_to_physical(np.stack([i, j, k], axis=-1).reshape(-1, 3))


def residual_displacement(field: Any, affine_lps: Any, points: Optional[Any] = None) -> Any:
    """u of T(x) = A(x + u(x)) at the voxels of a dense intrawarp.Field: (z, y, x, 3) float32, RAS mm.

    Args:
        field: a dense field, which holds D(x) = T(x) - x, affine part included.
        affine_lps: A, 4 x 4, LPS mm.
        points: grid_points(field.geometry), where the caller has them already.
    """
    nx, ny, nz = field.geometry.size_xyz
    at = grid_points(field.geometry) if points is None else points
    inverse = np.linalg.inv(np.asarray(affine_lps, dtype=np.float64))
    # u = A^-1(x + D) - x, with what depends on x apart from what depends on D.
    linear, flip = inverse[:3, :3].T * _SIGNS, _SIGNS
    of_points = (at @ (inverse[:3, :3].T - np.eye(3)) + inverse[:3, 3]) * flip
    displacement = field.array.reshape(-1, 3) @ linear.astype(np.float32)
    return (displacement + of_points).astype(np.float32).reshape(nz, ny, nx, 3)


def strides_for(geometry: Any, largest_nodes: int) -> Tuple[int, int, int]:
    """Every how many voxels along x, y, z a grid needs a node so that it has at most `largest_nodes`.

    The axis whose nodes are closest in mm is thinned first, so that thick slices keep theirs: VTK interpolates
    linearly, and its error grows with the square of the distance between nodes.
    """
    sizes, strides = geometry.size_xyz, [1, 1, 1]

    def nodes(axis: int) -> int:
        return -(-int(sizes[axis]) // strides[axis])

    while nodes(0) * nodes(1) * nodes(2) > largest_nodes:
        thinnable = [axis for axis in range(3) if nodes(axis) > 2]
        if not thinnable:
            break
        strides[min(thinnable, key=lambda axis: strides[axis] * geometry.spacing_xyz[axis])] += 1
    return strides[0], strides[1], strides[2]


class GridTransform:
    """The image behind a vtkOrientedGridTransform. `update` writes into the same memory for as long as the grid stays the
    same, so that a frame costs a copy and no new objects. For the main thread only."""

    def __init__(self, transform: Any) -> None:
        """`transform`: a vtkOrientedGridTransform, or anything with its methods SetDisplacementGridData and
        SetGridDirectionMatrix."""
        self.transform = transform
        self.image: Optional[Any] = None
        self._view: Any = None
        self._grid: Tuple[Any, ...] = ()

    def update(self, displacement_ras: Any, geometry: Any) -> bool:
        """Takes a new displacement.

        Args:
            displacement_ras: (z, y, x, 3), RAS mm, at the voxels of `geometry`.
            geometry: an intrawarp.Geometry (LPS).

        Returns:
            Whether the memory of the last update was used again.
        """
        expected = tuple(reversed(geometry.size_xyz)) + (3,)
        if tuple(displacement_ras.shape) != expected:
            raise ValueError(f"displacement: has the shape {tuple(displacement_ras.shape)}, must be {expected}")
        if not np.isfinite(displacement_ras).all():
            raise ValueError("displacement: is not finite everywhere")
        grid = (tuple(geometry.size_xyz), tuple(geometry.spacing_xyz), tuple(geometry.origin_xyz),
                tuple(np.ravel(geometry.direction_xyz)))
        is_same = self._view is not None and grid == self._grid
        if not is_same:
            self._allocate(geometry)
            self._grid = grid
        self._view[...] = displacement_ras
        self.image.GetPointData().GetScalars().Modified()
        self.image.Modified()
        self.transform.Modified()
        return is_same

    def _allocate(self, geometry: Any) -> None:
        nx, ny, nz = geometry.size_xyz
        image = vtk.vtkImageData()
        image.SetDimensions(nx, ny, nz)
        image.SetSpacing(*geometry.spacing_xyz)
        image.SetOrigin(*(np.asarray(geometry.origin_xyz) * _SIGNS))
        # Three floats a voxel, x fastest, as the active scalars.
        array = vtk.vtkFloatArray()
        array.SetName("DisplacementField")
        array.SetNumberOfComponents(3)
        array.SetNumberOfTuples(nx * ny * nz)
        image.GetPointData().SetScalars(array)
        direction = vtk.vtkMatrix4x4()
        axes = np.asarray(geometry.direction_xyz).reshape(3, 3) * _SIGNS[:, None]
        for row in range(3):
            for column in range(3):
                direction.SetElement(row, column, float(axes[row, column]))
        self.image = image
        self._view = numpy_support.vtk_to_numpy(array).reshape(nz, ny, nx, 3)
        self.transform.SetGridDirectionMatrix(direction)
        self.transform.SetDisplacementGridData(image)


def set_linear(node: Any, affine_lps: Any) -> None:
    """Makes a linear transform node map world to moving by `affine_lps` (4 x 4, LPS mm, fixed to moving)."""
    matrix = vtk.vtkMatrix4x4()
    ras = lps_matrix_to_ras(affine_lps)
    for row in range(4):
        for column in range(4):
            matrix.SetElement(row, column, float(ras[row, column]))
    node.SetMatrixTransformFromParent(matrix)


class TransformChain:
    """The two nodes of a deformation. A node that the user has deleted is an error, not a new node. For the main thread."""

    def __init__(self, linear_node: Any, grid_node: Any, oriented_grid_transform: Any) -> None:
        """
        Args:
            linear_node: a vtkMRMLLinearTransformNode.
            grid_node: a vtkMRMLGridTransformNode.
            oriented_grid_transform: a new vtkOrientedGridTransform.
        """
        self.linear_node = linear_node
        self.grid_node = grid_node
        self.grid = GridTransform(oriented_grid_transform)
        self._points: Optional[Any] = None
        self._points_of: Optional[Any] = None
        linear_node.SetAndObserveTransformNodeID(grid_node.GetID())
        grid_node.SetAndObserveTransformFromParent(oriented_grid_transform)

    def place(self, moving_node: Any) -> None:
        """Makes the chain the transform of a moving volume."""
        moving_node.SetAndObserveTransformNodeID(self.linear_node.GetID())

    def update(self, field: Optional[Any], affine_lps: Any) -> bool:
        """Shows a new result; returns whether the grid's memory was used again.

        Args:
            field: the dense field of a deformable result, at a coarse stride; None for an affine result, which leaves a
                grid that moves nothing.
            affine_lps: its affine part, 4 x 4, LPS mm, fixed to moving.
        """
        set_linear(self.linear_node, affine_lps)
        if field is not None:
            if self._points_of != field.geometry:
                self._points, self._points_of = grid_points(field.geometry), field.geometry
            return self.grid.update(residual_displacement(field, affine_lps, self._points), field.geometry)
        if self.grid.image is None:
            return True
        scalars = self.grid.image.GetPointData().GetScalars()
        scalars.Fill(0.0)
        scalars.Modified()
        self.grid.image.Modified()
        self.grid.transform.Modified()
        return True
