// SPDX-License-Identifier: Apache-2.0
// What gRPC says of a connection that could not be made or that broke, in the words of somebody who can mend it: no
// server at the address, TLS on one side only, a certificate that does not fit. Internal to the client library;
// thread-safe.
#ifndef INTRAWARP_CLIENT_CPP_TRANSPORT_MESSAGE_H_
#define INTRAWARP_CLIENT_CPP_TRANSPORT_MESSAGE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace intrawarp::client {

// The message itself where it is not known.
std::string PlainTransportMessage(absl::string_view message);

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_TRANSPORT_MESSAGE_H_
