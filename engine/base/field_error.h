// SPDX-License-Identifier: Apache-2.0
// Errors that name a field of the caller's input. The path travels as a payload, so that callers need not read
// messages.
//
// A path names the field as a request does: "levels", "stages[0].levels". Each caller adds its own part in front
// (Within). Thread safety: these are pure functions.
#ifndef INTRAWARP_ENGINE_BASE_FIELD_ERROR_H_
#define INTRAWARP_ENGINE_BASE_FIELD_ERROR_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace intrawarp {

// The type URL of the payload, whose bytes are the path.
inline constexpr absl::string_view kFieldPayload = "intrawarp/field";

// An error whose message is "path: description" and whose payload is `path`. `code` is not kOk; `path` is not empty.
absl::Status FieldError(absl::StatusCode code, absl::string_view path, absl::string_view description);

// The same error with `outer` before the path in its payload and its message: "outer.levels", and "outer[0]" for a path
// that begins with a bracket. A status without a field stays as it is. Other payloads are kept.
absl::Status Within(absl::string_view outer, const absl::Status& status);

// The path of the field that `status` names; empty when it names none.
std::string FieldOf(const absl::Status& status);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_BASE_FIELD_ERROR_H_
