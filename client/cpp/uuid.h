// SPDX-License-Identifier: Apache-2.0
// Random ids that do not meet. Thread-safe function.
#ifndef INTRAWARP_CLIENT_CPP_UUID_H_
#define INTRAWARP_CLIENT_CPP_UUID_H_

#include <string>

#include "absl/status/statusor.h"

namespace intrawarp::client {

// A UUID of version 4 (RFC 4122): 36 characters that are also a valid id of a volume or transform.
absl::StatusOr<std::string> RandomUuid();

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_UUID_H_
