#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Maps fixed points to moving ones by a DICOM registration object, by pydicom and numpy alone.

  read_registration.py REG.dcm POINTS MAPPED    POINTS, MAPPED: x y z in LPS mm, a line each

PS3.3 C.20.2.1.1: matrices of a Spatial Registration go from each source to the registered frame.
PS3.3 C.20.3.1.1: a Deformable Spatial Registration goes from the registered frame to the source, Post(Pre x + d(x)).
"""
import sys

import numpy as np
import pydicom

SPATIAL = "1.2.840.10008.5.1.4.1.1.66.1"


def matrix(item):
    return np.array([float(v) for v in item.FrameOfReferenceTransformationMatrix]).reshape(4, 4)


def apply(m, points):
    return points @ m[:3, :3].T + m[:3, 3]


def map_spatial(data, points):
    to_registered = {}
    for item in data.RegistrationSequence:
        to_registered[item.FrameOfReferenceUID] = matrix(item.MatrixRegistrationSequence[0].MatrixSequence[0])
    fixed = to_registered.pop(data.FrameOfReferenceUID)
    (moving,) = to_registered.values()
    return apply(np.linalg.inv(moving) @ fixed, points)


def offsets(grid, points):
    """Trilinear, 0 outside of the grid."""
    size = [int(n) for n in grid.GridDimensions]
    vectors = np.frombuffer(grid.VectorGridData, "<f4").reshape(size[2], size[1], size[0], 3).astype(float)
    orientation = np.array([float(v) for v in grid.ImageOrientationPatient])
    row, column = orientation[:3], orientation[3:]
    axes = np.stack([row, column, np.cross(row, column)])
    origin = np.array([float(v) for v in grid.ImagePositionPatient])
    index = (points - origin) @ axes.T / np.array([float(v) for v in grid.GridResolution])
    inside = np.all((index > -1e-6) & (index < np.array(size) - 1 + 1e-6), axis=1)
    base = np.clip(np.floor(index).astype(int), 0, np.maximum(np.array(size) - 2, 0))
    part = np.where(np.array(size) > 1, index - base, 0)
    total = np.zeros_like(points)
    for corner in range(8):
        step = np.array([corner & 1, corner >> 1 & 1, corner >> 2])
        at = np.minimum(base + step, np.array(size) - 1)
        weight = np.prod(np.where(step == 1, part, 1 - part), axis=1)
        total += weight[:, None] * vectors[at[:, 2], at[:, 1], at[:, 0]]
    return total * inside[:, None]


def map_deformable(data, points):
    (item,) = data.DeformableRegistrationSequence
    pre = matrix(item.PreDeformationMatrixRegistrationSequence[0])
    post = matrix(item.PostDeformationMatrixRegistrationSequence[0])
    grid = item.DeformableRegistrationGridSequence[0]
    return apply(post, apply(pre, points) + offsets(grid, points))


def main():
    registration, source, target = sys.argv[1:]
    data = pydicom.dcmread(registration)
    points = np.loadtxt(source, ndmin=2)
    mapped = map_spatial(data, points) if data.SOPClassUID == SPATIAL else map_deformable(data, points)
    np.savetxt(target, mapped, fmt="%.17g")


if __name__ == "__main__":
    main()
