// SPDX-License-Identifier: Apache-2.0
// RawCall: one call that streams messages as the transport's bytes, as blocking functions that can be abandoned.
// The transport works on threads of its own: while it sends one message the caller makes the next, and while the caller
// takes one message apart the next few are received.
//
// A write that waits for the socket cannot be cancelled: gRPC ends the call only when the connection fails, which takes
// ten seconds on a silent one. So the call's state outlives this object where it must. Internal to the client library.
//
// Thread safety: one thread may write (Write, WritesDone) while another reads (Read, Finish); Cancel, Abandon and
// is_ending may be called on any.
#ifndef INTRAWARP_CLIENT_CPP_RAW_CALL_H_
#define INTRAWARP_CLIENT_CPP_RAW_CALL_H_

#include <grpcpp/channel.h>
#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "client/cpp/call_options.h"

namespace intrawarp::client {

class RawCall {
 public:
  // Begins the call. `method`: "/package.Service/Method", which streams at least its requests.
  RawCall(std::shared_ptr<grpc::Channel> channel, const std::string& method, const CallOptions& options);
  // As Abandon.
  ~RawCall();
  RawCall(const RawCall&) = delete;
  RawCall& operator=(const RawCall&) = delete;

  // Waits until the transport has taken the message before this one, which must own its bytes. False: the stream has
  // ended, and Finish tells why.
  bool Write(grpc::ByteBuffer message);
  // Waits until the transport has taken the last message; false as of Write.
  bool Flush();
  // Waits as Flush, and says that no more come. False as of Write.
  bool WritesDone();
  // Waits for the next message; false: none comes.
  bool Read(grpc::ByteBuffer* message);
  // Waits for the call's end, which comes after its last message or Cancel. No write begins after it. UNAVAILABLE at
  // once when the call was abandoned.
  absl::Status Finish();

  // No message comes any more but those that have arrived: the stream has ended, or will.
  bool is_ending() const;

  // Finish need not wait for a write that is under way.
  void Cancel();
  // Cancels the call. All members return at once, whether the call has ended or not.
  void Abandon();

 private:
  class State;
  // Keeps abandoned calls until they have ended and another one is abandoned: a thread of gRPC's, on which they end,
  // cannot destroy their channel.
  static void KeepUntilDone(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace intrawarp::client

#endif  // INTRAWARP_CLIENT_CPP_RAW_CALL_H_
