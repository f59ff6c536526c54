// SPDX-License-Identifier: Apache-2.0
// Displacements of the nodes of a grid, in nodes (index units of the grid), three float32 each in device memory: made
// consistent with the displacements of the way back, and turned into a control grid.
#ifndef INTRAWARP_ENGINE_SEARCH_NODE_FIELD_H_
#define INTRAWARP_ENGINE_SEARCH_NODE_FIELD_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/device/exec_context.h"
#include "engine/geometry/geometry.h"
#include "engine/image/volume.h"

namespace intrawarp {

// Brings two fields closer to each other's inverse: in each of `rounds`, f becomes (f - b(x + f(x))) / 2 and likewise
// b, linear between the nodes, with the nearest node's value outside (Heinrich et al. 2013, "MRF-based deformable
// registration and ventilation estimation of lung CT"). In place. Stream-ordered. Workspace:
// MakeConsistentWorkspaceBytes. CPU and CUDA agree to float32 rounding.
absl::Status MakeConsistent(const ExecContext& ctx, Int3 size, int rounds, float* forward, float* backward);
int64_t MakeConsistentWorkspaceBytes(Int3 size);

// The control grid (transform/control_grid.h) of a field on `nodes`: a control point at every node, and two beyond them
// on each side, so that u is defined on the whole domain. An axis of one node has one control point.
Geometry ControlGridOfNodes(const Geometry& nodes);

// Writes the control points in mm of a spline that is close to the field at the nodes, `grid` on ControlGridOfNodes. A
// cubic B-spline with the values themselves as its coefficients would be a smoothed field; one correction by what the
// smoothing takes leaves a few per cent of that. Stream-ordered.
absl::Status ToControlGrid(const ExecContext& ctx, const float* field, const Geometry& nodes, FieldView grid);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SEARCH_NODE_FIELD_H_
