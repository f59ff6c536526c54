// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/unreachable.h"

#include "absl/strings/cord.h"

namespace intrawarp {
namespace {

constexpr char kUrl[] = "intrawarp/unreachable";

}  // namespace

absl::Status UnreachableError(absl::string_view message) {
  absl::Status status = absl::DeadlineExceededError(message);
  status.SetPayload(kUrl, absl::Cord("1"));
  return status;
}

bool IsUnreachable(const absl::Status& status) { return status.GetPayload(kUrl).has_value(); }

}  // namespace intrawarp
