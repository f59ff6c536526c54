// SPDX-License-Identifier: Apache-2.0
// Conversions between the wire and the engine that the server alone needs; the others are in wire/convert.h. Pure
// functions.
#ifndef INTRAWARP_SERVER_BASE_WIRE_H_
#define INTRAWARP_SERVER_BASE_WIRE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/geometry/geometry.h"
#include "engine/schedule/latency.h"
#include "intrawarp/v1/common.pb.h"
#include "wire/convert.h"

namespace intrawarp::server {

// Milliseconds; the phases' fields are in the order of kPhaseNames.
v1::LatencyBreakdown LatencyToProto(const LatencyBreakdown& from);

// Bytes of all voxels. INVALID_ARGUMENT, naming "size", when they overflow 63 bits.
absl::StatusOr<int64_t> ImageBytes(const Geometry& geometry, int64_t bytes_per_voxel);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BASE_WIRE_H_
