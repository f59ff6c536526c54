// SPDX-License-Identifier: Apache-2.0
#include "tests/server/raw_call.h"

#include <gtest/gtest.h>

#include <vector>

namespace intrawarp::server {
namespace {

std::string Flat(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

}  // namespace

RawCall::RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                 std::optional<std::chrono::milliseconds> timeout)
    : stub_(channel) {
  if (timeout) context_.set_deadline(std::chrono::system_clock::now() + *timeout);
  call_ = stub_.PrepareCall(&context_, method, &queue_);
  call_->StartCall(nullptr);
  Next();
}

RawCall::~RawCall() {
  context_.TryCancel();
  queue_.Shutdown();
  void* tag;
  bool ok;
  while (queue_.Next(&tag, &ok)) {
  }
}

bool RawCall::Write(const grpc::ByteBuffer& message) {
  call_->Write(message, nullptr);
  return Next();
}

bool RawCall::Write(const std::string& message) {
  const grpc::Slice slice(message);
  return Write(grpc::ByteBuffer(&slice, 1));
}

bool RawCall::WritesDone() {
  call_->WritesDone(nullptr);
  return Next();
}

std::optional<std::string> RawCall::Read() {
  grpc::ByteBuffer message;
  call_->Read(&message, nullptr);
  if (!Next()) return std::nullopt;
  return Flat(message);
}

grpc::Status RawCall::Finish() {
  grpc::Status status;
  call_->Finish(&status, nullptr);
  Next();
  return status;
}

bool RawCall::Next() {
  void* tag;
  bool ok = false;
  queue_.Next(&tag, &ok);
  return ok;
}

}  // namespace intrawarp::server
