// SPDX-License-Identifier: Apache-2.0
// The options that say which displacement field a command fetches, and in what form it travels. Thread-safe functions.
#ifndef INTRAWARP_CLIENT_CLI_FIELD_FLAGS_H_
#define INTRAWARP_CLIENT_CLI_FIELD_FLAGS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/flags.h"
#include "intrawarp/v1/common.pb.h"

namespace intrawarp::cli {

// --field_encoding, --field_region, --field_stride.
std::vector<FlagSpec> FieldFlagSpecs();

// INVALID_ARGUMENT (a wrong command line) for numbers that don't parse, and for one of these options where `used` says
// that there is no field for it, which `by` would write.
absl::StatusOr<v1::FieldRequest> ParseFieldFlags(const ParsedFlags& flags, bool used, const std::string& by);

// Whether the field asked for lies on the whole grid of the fixed image.
bool IsWholeField(const v1::FieldRequest& request);

}  // namespace intrawarp::cli

#endif  // INTRAWARP_CLIENT_CLI_FIELD_FLAGS_H_
