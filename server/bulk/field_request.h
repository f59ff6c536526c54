// SPDX-License-Identifier: Apache-2.0
// Which displacement field a client asks for, checked, and what then goes over the wire. No gRPC here.
#ifndef INTRAWARP_SERVER_BULK_FIELD_REQUEST_H_
#define INTRAWARP_SERVER_BULK_FIELD_REQUEST_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/exec_context.h"
#include "engine/geometry/geometry.h"
#include "engine/transform/encode.h"
#include "engine/transform/transform.h"
#include "intrawarp/v1/common.pb.h"

namespace intrawarp::server {

// Displacements or velocities at voxels, or the coefficients of a control grid.
enum class FieldForm { kDisplacement, kVelocity, kControlPoints };

// A request whose numbers are sane by themselves; whether they fit a grid, FieldGrid says.
struct FieldRequest {
  FieldForm form = FieldForm::kDisplacement;
  // kFloat32 but for a displacement.
  ComponentType component = ComponentType::kFloat32;
  // Unset: the whole grid. Not of control points.
  std::optional<Int3> region_start;
  Int3 region_size{0, 0, 0};
  Int3 stride{1, 1, 1};
};

// INVALID_ARGUMENT names the field relative to the request ("region_size: ..."). An encoding must be given.
absl::StatusOr<FieldRequest> FieldRequestFromProto(const v1::FieldRequest& from);

// The grid of the answer, unless that is control points: the region and stride of `domain`. INVALID_ARGUMENT
// "region_start: ..." or "region_size: ..." when the region reaches out of it.
absl::StatusOr<Geometry> FieldGrid(const FieldRequest& request, const Geometry& domain);

// Bytes of the answer for a transform of which only the domain is known yet; at most, for control points.
int64_t FieldBytes(const FieldRequest& request, const Geometry& grid);

// What a native form is called on the wire: "CONTROL_POINTS", "VELOCITY".
const char* FormName(FieldForm form);
// Whether the transform is of that form; any is for kDisplacement.
bool HasForm(const Transform& transform, FieldForm form);

// A field that is about to be sent.
struct FieldAnswer {
  v1::FieldHeader header;
  FieldForm form = FieldForm::kDisplacement;
  ComponentEncoding encoding;
  Geometry grid;
};

// `grid` is FieldGrid's. FAILED_PRECONDITION "encoding: ..." for a native form that the transform lacks, and for
// displacements that don't fit the encoding. May wait for the stream. Workspace: DisplacementBoundWorkspaceBytes.
absl::StatusOr<FieldAnswer> MakeFieldAnswer(const ExecContext& ctx, const FieldRequest& request,
                                            const Transform& transform, const Geometry& grid);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BULK_FIELD_REQUEST_H_
