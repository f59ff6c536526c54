// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/snapshot.h"

#include "engine/base/status_macros.h"
#include "wire/convert.h"

namespace intrawarp::igtl {

absl::StatusOr<std::shared_ptr<const Snapshot>> SnapshotOf(const FrameOutcome& outcome) {
  const v1::Report& report = outcome.answer.result.report();
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->frame_number = outcome.answer.result.frame_number();
  snapshot->is_ok = report.verdict() == v1::VERDICT_OK;
  if (report.has_error()) snapshot->error = {report.error().expected_mm(), report.error().bound_mm()};
  if (!outcome.answer.has_field) return absl::InvalidArgumentError("the answer has no field");
  INTRAWARP_ASSIGN_OR_RETURN(const AffineMap affine, AffineMapFromProto(report.affine()));
  INTRAWARP_ASSIGN_OR_RETURN(snapshot->map,
                             FieldMap::Make(outcome.field.geometry, outcome.domain, affine, outcome.field.values));
  if (report.has_error_map()) {
    const v1::ErrorMap& map = report.error_map();
    INTRAWARP_ASSIGN_OR_RETURN(const Geometry blocks, GeometryFromProto(map.geometry()));
    INTRAWARP_ASSIGN_OR_RETURN(snapshot->errors,
                               ErrorGrid::Make(blocks, {map.expected_mm().begin(), map.expected_mm().end()},
                                               {map.bound_mm().begin(), map.bound_mm().end()}));
  }
  snapshot->received = outcome.frame ? outcome.frame->received : std::chrono::steady_clock::now();
  if (outcome.frame) snapshot->timestamp = outcome.frame->timestamp;
  return std::shared_ptr<const Snapshot>(std::move(snapshot));
}

}  // namespace intrawarp::igtl
