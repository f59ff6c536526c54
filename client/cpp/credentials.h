// SPDX-License-Identifier: Apache-2.0
// The credentials of a client's channels. Internal to the client library. Thread-safe.
#ifndef INTRAWARP_CLIENT_CPP_CREDENTIALS_H_
#define INTRAWARP_CLIENT_CPP_CREDENTIALS_H_

#include <grpcpp/security/credentials.h>

#include <memory>

#include "absl/status/statusor.h"
#include "client/cpp/client.h"

namespace intrawarp::client {

// INVALID_ARGUMENT names the member of ChannelSecurity that lacks another or whose file holds no such thing; the errors
// of reading a file, with its member.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(const ChannelSecurity& security);

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_CREDENTIALS_H_
