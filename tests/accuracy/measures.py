# SPDX-License-Identifier: Apache-2.0
"""Figures of one registration against its truth."""

import numpy as np


def distances(found, true):
    """mean, p95 and max of the distances of points, in the points' unit."""
    length = np.linalg.norm(found - true, axis=1)
    return {'mean': float(length.mean()), 'p95': float(np.percentile(length, 95)), 'max': float(length.max())}


def learn2reg_determinant(displacement_vox):
    """det(I + du/dx) as Learn2Reg takes it: central differences [-1/2, 0, 1/2] in voxels, two voxels cut off each face.

    `displacement_vox` is x, y, z, component, in voxels of the grid. The cut leaves only voxels whose differences are
    central.
    """
    gradient = np.stack([np.gradient(displacement_vox.astype(np.float64), axis=axis) for axis in range(3)], axis=-1)
    inner = gradient[2:-2, 2:-2, 2:-2]
    return np.linalg.det(np.eye(3) + inner)


def sd_log_jacobian(determinant):
    """Learn2Reg's SDlogJ: std(log(clip(det J + 3, 1e-9, 1e9))); the 3 is theirs, so it is not std(log det J)."""
    return float(np.log(np.clip(determinant + 3, 1e-9, 1e9)).std())
