// SPDX-License-Identifier: Apache-2.0
// Snapshot: a result of the server as the bridge uses it. Immutable once it is shared, hence thread-safe.
#ifndef INTRAWARP_CLIENT_IGTL_SNAPSHOT_H_
#define INTRAWARP_CLIENT_IGTL_SNAPSHOT_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/igtl/error_grid.h"
#include "client/igtl/field_map.h"
#include "client/igtl/frame_session.h"

namespace intrawarp::igtl {

struct Snapshot {
  int64_t frame_number = 0;
  bool is_ok = false;  // VERDICT_OK
  std::optional<PredictedError> error;
  std::shared_ptr<const FieldMap> map;
  std::optional<ErrorGrid> errors;
  // When the image came.
  std::chrono::steady_clock::time_point received;
  uint64_t timestamp = 0;

  int64_t age_ms(std::chrono::steady_clock::time_point now) const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(now - received).count();
  }
};

// Takes an outcome with status OK and a field. INVALID_ARGUMENT for a field or a report that contradicts itself.
absl::StatusOr<std::shared_ptr<const Snapshot>> SnapshotOf(const FrameOutcome& outcome);

}  // namespace intrawarp::igtl

#endif  // INTRAWARP_CLIENT_IGTL_SNAPSHOT_H_
