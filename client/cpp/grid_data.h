// SPDX-License-Identifier: Apache-2.0
// Where the floats of a streamed volume or field go: into vectors of the client, or into memory of the caller.
#ifndef INTRAWARP_CLIENT_CPP_GRID_DATA_H_
#define INTRAWARP_CLIENT_CPP_GRID_DATA_H_

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/geometry/geometry.h"

namespace intrawarp::client {

// One float32 a voxel (a volume) or three, x y z interleaved, LPS mm (displacements or velocities). x fastest.
struct GridData {
  Geometry geometry;
  std::vector<float> values;
};

// Called once, when the grid is known, for memory of exactly `values` floats, into which they are received without
// another copy; it stays valid until the call returns. The geometry is valid. An error ends the call with that error.
using GridSink = std::function<absl::StatusOr<absl::Span<float>>(const Geometry& geometry, int64_t values)>;

// A sink that fills `data`, which outlives the call. What it holds after a failed call is unspecified.
GridSink SinkInto(GridData* data);

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_GRID_DATA_H_
