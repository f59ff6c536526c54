# SPDX-License-Identifier: Apache-2.0
"""The result of a registration: a map from fixed to moving points, LPS mm."""

import nibabel
import numpy as np

import pairs


class Affine:
    """A 4x4 matrix."""

    def __init__(self, matrix):
        self.matrix = np.asarray(matrix, dtype=float)

    def __call__(self, points):
        return pairs.map_points(self.matrix, points)

    def smallest_determinant(self, _):
        return float(np.linalg.det(self.matrix[:3, :3]))


class Displacement:
    """Displacements at the voxels of a grid, linear between them, the nearest voxel's outside."""

    def __init__(self, vectors, affine_lps):
        self._vectors = np.asarray(vectors, dtype=np.float32)  # x, y, z, component
        self._affine = np.asarray(affine_lps, dtype=float)
        self._to_index = np.linalg.inv(self._affine)

    @classmethod
    def read(cls, path, ras=False):
        """A 5-D NIfTI file of displacements in mm, LPS unless told otherwise."""
        image = nibabel.load(path)
        vectors = np.asanyarray(image.dataobj, dtype=np.float32).reshape(*image.shape[:3], -1)
        if vectors.shape[3] == 2:
            vectors = np.concatenate([vectors, np.zeros_like(vectors[..., :1])], axis=3)
        if ras:
            vectors = vectors * np.array([-1, -1, 1], dtype=np.float32)
        return cls(vectors, pairs.lps_affine(image))

    def __call__(self, points):
        limits = np.array(self._vectors.shape[:3]) - 1
        index = np.clip(pairs.map_points(self._to_index, points), 0, limits)
        lower = np.minimum(np.floor(index).astype(int), np.maximum(limits - 1, 0))
        weight = (index - lower).astype(np.float32)
        displacement = np.zeros((len(points), 3), dtype=np.float32)
        for corner in np.ndindex(2, 2, 2):
            at = np.minimum(lower + corner, limits)
            displacement += (self._vectors[tuple(at.T)]
                             * np.prod(np.where(corner, weight, 1 - weight), axis=1)[:, np.newaxis])
        return points + displacement

    def smallest_determinant(self, mask):
        """Of the Jacobian, by central differences, over the voxels of `mask` (None: all) off the faces."""
        axes = [axis for axis in range(3) if self._vectors.shape[axis] > 2]
        gradient = np.zeros((*self._vectors.shape[:3], 3, 3), dtype=np.float32)
        for axis in axes:
            per_index = np.gradient(self._vectors, axis=axis)
            gradient += per_index[..., :, np.newaxis] * self._to_index[axis, :3].astype(np.float32)
        determinant = np.linalg.det(np.eye(3, dtype=np.float32) + gradient)
        inner = tuple(slice(1, -1) if axis in axes else slice(None) for axis in range(3))
        values = determinant[inner]
        if mask is not None and mask.shape == determinant.shape:
            values = values[mask[inner]]
        return float(values.min())
