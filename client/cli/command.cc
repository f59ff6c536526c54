// SPDX-License-Identifier: Apache-2.0
#include "client/cli/command.h"

#include "absl/strings/cord.h"

namespace intrawarp::cli {
namespace {

constexpr char kUsagePayload[] = "intrawarp/wrong_command_line";

}  // namespace

absl::Status UsageError(absl::Status status) {
  if (!status.ok()) status.SetPayload(kUsagePayload, absl::Cord());
  return status;
}

bool IsUsageError(const absl::Status& status) { return status.GetPayload(kUsagePayload).has_value(); }

}  // namespace intrawarp::cli
