// SPDX-License-Identifier: Apache-2.0
#include "server/bulk/field_stream.h"

#include <utility>

#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "engine/transform/encode.h"

namespace intrawarp::server {
namespace {

// Control points as they lie, with all that keeps them there.
std::shared_ptr<SlabSource> ControlPoints(const Transform& transform, std::shared_ptr<const void> owner,
                                          int64_t total_bytes) {
  // Member order matters: the transform's memory is freed before its owner lets go.
  struct Held {
    std::shared_ptr<const void> owner;
    Transform transform;
  };
  auto held = std::make_shared<const Held>(Held{std::move(owner), transform});
  const void* const data = held->transform.control_grid().data;
  return std::make_shared<ResidentSource>(ResidentBytes{std::move(held), {{data, total_bytes}}});
}

}  // namespace

Amounts FieldStreamAmounts(const Device& device, const FieldRequest& request, const Geometry& grid, int64_t total_bytes,
                           int64_t offset) {
  if (request.form == FieldForm::kControlPoints) {
    return {.pinned_bytes = DeviceBulk::RingBytes(total_bytes, ResidentSource::kSlabBytes, offset)};
  }
  return {.resident_bytes = FieldSource::ScratchBytes(device, request, grid),
          .pinned_bytes = DeviceBulk::RingBytes(total_bytes, FieldSource::SlabBytes(request), offset)};
}

int64_t FieldStreamWorkspaceBytes() { return DisplacementBoundWorkspaceBytes(); }

absl::StatusOr<FieldStream> MakeFieldStream(const ExecContext& ctx, DeviceContext& context, const FieldRequest& request,
                                            const Transform& transform, std::shared_ptr<const void> owner,
                                            const Geometry& grid, int64_t offset, Grant& grant) {
  absl::StatusOr<FieldAnswer> answer = MakeFieldAnswer(ctx, request, transform, grid);
  if (!answer.ok()) return Within("field", answer.status());
  FieldStream stream;
  stream.header = answer->header;
  std::shared_ptr<SlabSource> source;
  if (request.form == FieldForm::kControlPoints) {
    INTRAWARP_RETURN_IF_ERROR(ctx.device().Synchronize(ctx.stream()));
    source = ControlPoints(transform, std::move(owner), answer->header.total_bytes());
  } else {
    INTRAWARP_ASSIGN_OR_RETURN(std::shared_ptr<FieldSource> field,
                               FieldSource::Create(ctx, request, transform, std::move(owner), *answer, grant));
    stream.source = field;
    source = std::move(field);
  }
  INTRAWARP_ASSIGN_OR_RETURN(stream.bulk, DeviceBulk::Create(context, std::move(source), offset, grant));
  return stream;
}

}  // namespace intrawarp::server
