// SPDX-License-Identifier: Apache-2.0
// A call of any method with raw messages, step by step: for what a generated stub would not send, and for clients that
// stop half way.
#ifndef INTRAWARP_TESTS_SERVER_RAW_CALL_H_
#define INTRAWARP_TESTS_SERVER_RAW_CALL_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace intrawarp::server {

// Each step waits until it is done. The destructor cancels a call that has not ended.
class RawCall {
 public:
  // `method`: "/package.Service/Method".
  RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
          std::optional<std::chrono::milliseconds> timeout = std::nullopt);
  ~RawCall();
  bool Write(const grpc::ByteBuffer& message);
  bool Write(const std::string& message);
  bool WritesDone();
  // nullopt at the end of the stream.
  std::optional<std::string> Read();
  void Cancel() { context_.TryCancel(); }
  grpc::Status Finish();

 private:
  bool Next();

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_RAW_CALL_H_
