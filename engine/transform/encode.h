// SPDX-License-Identifier: Apache-2.0
// Smaller forms of a dense displacement field, with the error that they cost.
#ifndef INTRAWARP_ENGINE_TRANSFORM_ENCODE_H_
#define INTRAWARP_ENGINE_TRANSFORM_ENCODE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/transform/transform.h"

namespace intrawarp {

// The format of a component: IEEE 754 binary32 or binary16 in mm, or a signed 16-bit integer in units of a scale.
enum class ComponentType { kFloat32, kFloat16, kInt16 };

constexpr int64_t BytesPerComponent(ComponentType type) { return type == ComponentType::kFloat32 ? 4 : 2; }

struct ComponentEncoding {
  ComponentType type = ComponentType::kFloat32;
  // kInt16: mm a unit.
  double scale = 0;
  // No component moves by more than this, mm.
  double max_error = 0;
};

// A number that no component of T(p) - p exceeds anywhere in the domain of `grid`: from the corners for the affine
// part, from the largest coefficient for a spline (which lies in the hull of its coefficients) or a displacement. Waits
// for the stream. Workspace: DisplacementBoundWorkspaceBytes.
absl::StatusOr<double> DisplacementBound(const ExecContext& ctx, const Transform& transform, const Geometry& grid);
int64_t DisplacementBoundWorkspaceBytes();

// The finest encoding of a type for components of at most `bound` (kInt16: units of 1e-30 mm or more).
// FAILED_PRECONDITION "encoding: ..." when they don't fit kFloat16, or are so large that kInt16 has no unit for them.
absl::StatusOr<ComponentEncoding> MakeComponentEncoding(ComponentType type, double bound);

// Writes `count` components, rounded to nearest. `out` may not overlap `values`. Stream-ordered. Not for kFloat32.
absl::Status EncodeComponents(const ExecContext& ctx, const float* values, int64_t count,
                              const ComponentEncoding& encoding, void* out);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_TRANSFORM_ENCODE_H_
