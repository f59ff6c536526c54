// SPDX-License-Identifier: Apache-2.0
// Volumes that are filled voxel by voxel: what the phantoms share. Free functions, thread-safe.
#ifndef INTRAWARP_CLIENT_PHANTOM_VOXELS_H_
#define INTRAWARP_CLIENT_PHANTOM_VOXELS_H_

#include <cstdint>
#include <functional>

#include "engine/base/pixel_type.h"
#include "engine/geometry/geometry.h"
#include "io/format/nifti.h"

namespace intrawarp::phantom {

// body(index, point) for every voxel of the grid, rows in any order, on all cores. The phantoms have a loop of their
// own, so that the command line links neither the engine nor oneTBB.
void ForEachVoxel(const Geometry& geometry, const std::function<void(int64_t, Vec3d)>& body);

// All zero.
io::HostVolume EmptyVolume(const Geometry& geometry, PixelType type);

// Rounds to the nearest integer and clamps.
int16_t ToInt16(double value);

// A voxel of an int16 volume.
void SetPixel(io::HostVolume& volume, int64_t index, int16_t value);
int16_t GetPixel(const io::HostVolume& volume, int64_t index);

// True where linear interpolation at `point` has all its samples.
bool Contains(const Geometry& geometry, Vec3d point);

}  // namespace intrawarp::phantom

#endif  // INTRAWARP_CLIENT_PHANTOM_VOXELS_H_
