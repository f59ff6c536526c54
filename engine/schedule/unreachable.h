// SPDX-License-Identifier: Apache-2.0
// DEADLINE_EXCEEDED of a job whose deadline lies ahead, told apart from that of a deadline that has passed. Pure
// functions.
#ifndef INTRAWARP_ENGINE_SCHEDULE_UNREACHABLE_H_
#define INTRAWARP_ENGINE_SCHEDULE_UNREACHABLE_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace intrawarp {

absl::Status UnreachableError(absl::string_view message);
// False for every error that UnreachableError did not make.
bool IsUnreachable(const absl::Status& status);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_SCHEDULE_UNREACHABLE_H_
