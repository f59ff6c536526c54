// SPDX-License-Identifier: Apache-2.0
// UploadStream: the stream of one attempt at an upload, as blocking calls that can be abandoned. A write that waits for
// the socket cannot be cancelled: gRPC ends the call only when the connection fails, which takes ten seconds on a
// silent one. So the call's state outlives this object where it must. Internal to the client library.
//
// Thread safety: Abandon may be called on any thread; the rest belongs to one thread.
#ifndef INTRAWARP_CLIENT_CPP_UPLOAD_STREAM_H_
#define INTRAWARP_CLIENT_CPP_UPLOAD_STREAM_H_

#include <grpcpp/channel.h>
#include <grpcpp/support/byte_buffer.h>

#include <memory>

#include "absl/status/statusor.h"
#include "client/cpp/call_options.h"
#include "intrawarp/v1/bulk.pb.h"

namespace intrawarp::client {

class UploadStream {
 public:
  UploadStream(const std::shared_ptr<grpc::Channel>& channel, const CallOptions& options);
  ~UploadStream();
  UploadStream(const UploadStream&) = delete;
  UploadStream& operator=(const UploadStream&) = delete;

  // Waits until the transport has taken the message, which must own its bytes. False: the stream has ended, and Finish
  // tells why.
  bool Write(grpc::ByteBuffer message);
  // No more messages come. Waits for the server's answer; UNAVAILABLE at once when the stream was abandoned.
  absl::StatusOr<v1::UploadResponse> Finish();
  // Cancels the call. Write and Finish return at once, whether the call has ended or not.
  void Abandon();

 private:
  class State;
  // Keeps abandoned calls until they have ended and another one is abandoned: a thread of gRPC's, on which they end,
  // cannot destroy their channel.
  static void KeepUntilDone(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_UPLOAD_STREAM_H_
