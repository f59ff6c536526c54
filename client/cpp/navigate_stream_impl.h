// SPDX-License-Identifier: Apache-2.0
// The call of a NavigateStream. Internal to the client library.
#ifndef INTRAWARP_CLIENT_CPP_NAVIGATE_STREAM_IMPL_H_
#define INTRAWARP_CLIENT_CPP_NAVIGATE_STREAM_IMPL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "client/cpp/client_impl.h"
#include "client/cpp/navigate_stream.h"
#include "client/cpp/raw_call.h"
#include "client/cpp/shared_slots.h"
#include "client/cpp/stall_watch.h"

namespace intrawarp::client {

struct NavigateStream::Impl {
  // The connection for a new stream.
  using ChannelFn = std::function<std::shared_ptr<grpc::Channel>()>;

  Impl(const CallOptions& call_options, const ClientOptions& client_options, v1::NavigateConfig config,
       ChannelFn channel)
      : call_options(call_options), options(client_options), config(std::move(config)), channel(std::move(channel)) {}

  bool Read(grpc::ByteBuffer* message) {
    const bool is_read = call->Read(message);
    watch->Moved();
    return is_read;
  }

  const CallOptions call_options;
  const ClientOptions options;
  const v1::NavigateConfig config;
  const ChannelFn channel;
  std::mutex mutex;  // of the pointer `call`, which Cancel reads
  std::unique_ptr<RawCall> call;
  std::unique_ptr<StallWatch> watch;  // of the call; gone before it
  // Belongs to the call: null where it shares no memory. Asked for again when the session is resumed.
  std::unique_ptr<SharedSlots> shared;
  std::optional<SharedMemoryOptions> shared_options;
  absl::Status memory_status = absl::FailedPreconditionError("shared memory was not asked for");
  std::atomic<int64_t> frames_shared{0}, frames_in_chunks{0}, fields_shared{0}, fields_in_chunks{0};
  // The receiving thread's: the server's words about the session, and the end of the stream.
  std::optional<v1::SessionOpened> opened;
  std::optional<v1::Session> closed;
  std::optional<absl::Status> end;
};

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_NAVIGATE_STREAM_IMPL_H_
