// SPDX-License-Identifier: Apache-2.0
// The call of a NavigateStream. Internal to the client library.
#ifndef INTRAWARP_CLIENT_CPP_NAVIGATE_STREAM_IMPL_H_
#define INTRAWARP_CLIENT_CPP_NAVIGATE_STREAM_IMPL_H_

#include <memory>
#include <optional>

#include "client/cpp/client_impl.h"
#include "client/cpp/navigate_stream.h"

namespace intrawarp::client {

struct NavigateStream::Impl {
  Impl(const CallOptions& call_options, const ClientOptions& client_options)
      : call(call_options), options(client_options) {}

  Call call;
  const ClientOptions options;
  bool wants_field = false;
  std::unique_ptr<grpc::ClientReaderWriter<v1::NavigateRequest, v1::NavigateResponse>> stream;
  // Of the receiving thread: how the stream ended.
  std::optional<absl::Status> end;
};

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_NAVIGATE_STREAM_IMPL_H_
