// SPDX-License-Identifier: Apache-2.0
// What tests do with the bulk service over the wire.
#ifndef INTRAWARP_TESTS_SERVER_BULK_CLIENT_H_
#define INTRAWARP_TESTS_SERVER_BULK_CLIENT_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>

#include "intrawarp/v1/bulk.grpc.pb.h"
#include "io/crc32c.h"
#include "io/digest.h"

namespace intrawarp::server {

inline v1::Chunk MakeChunk(int64_t offset, const std::string& data) {
  v1::Chunk chunk;
  chunk.set_offset(offset);
  chunk.set_crc32c(io::Crc32c(data.data(), data.size()));
  chunk.set_data(data);
  return chunk;
}

// An object to upload; tests spoil its header and its bytes.
struct UploadData {
  v1::UploadHeader header;
  std::string bytes;

  void Seal() {
    header.set_total_bytes(static_cast<int64_t>(bytes.size()));
    header.set_sha256(io::Sha256Of(bytes.data(), bytes.size()));
  }
};

// An Upload call, message by message.
class UploadCall {
 public:
  explicit UploadCall(v1::BulkService::Stub& stub, std::chrono::milliseconds deadline = std::chrono::seconds(60)) {
    context_.set_deadline(std::chrono::system_clock::now() + deadline);
    writer_ = stub.Upload(&context_, &response_);
  }
  bool SendHeader(const v1::UploadHeader& header) {
    v1::UploadRequest request;
    *request.mutable_header() = header;
    return writer_->Write(request);
  }
  bool SendChunk(int64_t offset, const std::string& data) { return SendChunk(MakeChunk(offset, data)); }
  bool SendChunk(const v1::Chunk& chunk) {
    v1::UploadRequest request;
    *request.mutable_chunk() = chunk;
    return writer_->Write(request);
  }
  // [begin, end) in chunks.
  bool SendBytes(const std::string& bytes, size_t begin, size_t end, size_t chunk) {
    for (size_t at = begin; at < end; at += chunk) {
      if (!SendChunk(at, bytes.substr(at, std::min(chunk, end - at)))) return false;
    }
    return true;
  }
  bool Send(const v1::UploadRequest& request) { return writer_->Write(request); }
  grpc::Status Finish() {
    writer_->WritesDone();
    return writer_->Finish();
  }
  void WritesDone() { writer_->WritesDone(); }
  // Without ending the stream of requests.
  grpc::Status Await() { return writer_->Finish(); }
  void Cancel() {
    context_.TryCancel();
    writer_->Finish();
  }
  const v1::UploadResponse& response() const { return response_; }

 private:
  grpc::ClientContext context_;
  v1::UploadResponse response_;
  std::unique_ptr<grpc::ClientWriter<v1::UploadRequest>> writer_;
};

// Sends the header and the bytes from `begin` to `end`, and ends the stream.
inline grpc::Status Upload(v1::BulkService::Stub& stub, const UploadData& data, v1::UploadResponse* response = nullptr,
                           size_t chunk = 1000, size_t begin = 0, size_t end = std::string::npos) {
  UploadCall call(stub);
  call.SendHeader(data.header);
  call.SendBytes(data.bytes, begin, std::min(end, data.bytes.size()), chunk);
  const grpc::Status status = call.Finish();
  if (response != nullptr) *response = call.response();
  return status;
}

struct DownloadedBytes {
  grpc::Status status;
  v1::DownloadHeader header;
  std::string bytes;  // from the offset on
  int chunks = 0;
};

// Checks on the way that there is one header and that chunks come in order, with their checksums.
inline DownloadedBytes DownloadBytes(v1::BulkService::Stub& stub, const v1::DownloadRequest& request) {
  DownloadedBytes download;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  auto reader = stub.Download(&context, request);
  v1::DownloadResponse response;
  bool has_header = false;
  while (reader->Read(&response)) {
    if (response.has_header()) {
      EXPECT_FALSE(std::exchange(has_header, true));
      download.header = response.header();
      continue;
    }
    EXPECT_TRUE(has_header);
    ++download.chunks;
    const v1::Chunk& chunk = response.chunk();
    EXPECT_EQ(chunk.offset(), request.offset() + static_cast<int64_t>(download.bytes.size()));
    EXPECT_TRUE(chunk.has_crc32c());
    EXPECT_EQ(chunk.crc32c(), io::Crc32c(chunk.data().data(), chunk.data().size()));
    download.bytes += chunk.data();
  }
  download.status = reader->Finish();
  if (download.status.ok()) {
    EXPECT_EQ(request.offset() + static_cast<int64_t>(download.bytes.size()), download.header.total_bytes());
  }
  return download;
}

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_BULK_CLIENT_H_
