// SPDX-License-Identifier: Apache-2.0
// A call of any method with raw messages, step by step: for what a generated stub would not send, and for clients that
// stop half way.
#ifndef INTRAWARP_TESTS_SERVER_RAW_CALL_H_
#define INTRAWARP_TESTS_SERVER_RAW_CALL_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace intrawarp::server {

// Each step waits until it is done. Cancels what has not ended when it goes.
class RawCall {
 public:
  // `method`: "/package.Service/Method".
  RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
          std::optional<std::chrono::milliseconds> timeout = std::nullopt)
      : stub_(channel) {
    if (timeout) context_.set_deadline(std::chrono::system_clock::now() + *timeout);
    call_ = stub_.PrepareCall(&context_, method, &queue_);
    call_->StartCall(nullptr);
    Next();
  }
  ~RawCall() {
    context_.TryCancel();
    queue_.Shutdown();
    void* tag;
    bool ok;
    while (queue_.Next(&tag, &ok)) {
    }
  }
  bool Write(const grpc::ByteBuffer& message) {
    call_->Write(message, nullptr);
    return Next();
  }
  bool Write(const std::string& message) {
    const grpc::Slice slice(message);
    return Write(grpc::ByteBuffer(&slice, 1));
  }
  bool WritesDone() {
    call_->WritesDone(nullptr);
    return Next();
  }
  // nullopt at the end of the stream.
  std::optional<std::string> Read() {
    grpc::ByteBuffer message;
    call_->Read(&message, nullptr);
    if (!Next()) return std::nullopt;
    return Flat(message);
  }
  void Cancel() { context_.TryCancel(); }
  grpc::Status Finish() {
    grpc::Status status;
    call_->Finish(&status, nullptr);
    Next();
    return status;
  }

 private:
  static std::string Flat(const grpc::ByteBuffer& buffer) {
    std::vector<grpc::Slice> slices;
    EXPECT_TRUE(buffer.Dump(&slices).ok());
    std::string bytes;
    for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    return bytes;
  }
  bool Next() {
    void* tag;
    bool ok = false;
    queue_.Next(&tag, &ok);
    return ok;
  }
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_RAW_CALL_H_
