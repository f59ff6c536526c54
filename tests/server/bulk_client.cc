// SPDX-License-Identifier: Apache-2.0
#include "tests/server/bulk_client.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace intrawarp::server {

UploadCall::UploadCall(v1::BulkService::Stub& stub, std::chrono::milliseconds deadline) {
  context_.set_deadline(std::chrono::system_clock::now() + deadline);
  writer_ = stub.Upload(&context_, &response_);
}

bool UploadCall::SendHeader(const v1::UploadHeader& header) {
  v1::UploadRequest request;
  *request.mutable_header() = header;
  return writer_->Write(request);
}

bool UploadCall::SendChunk(const v1::Chunk& chunk) {
  v1::UploadRequest request;
  *request.mutable_chunk() = chunk;
  return writer_->Write(request);
}

bool UploadCall::SendBytes(const std::string& bytes, size_t begin, size_t end, size_t chunk) {
  for (size_t at = begin; at < end; at += chunk) {
    if (!SendChunk(at, bytes.substr(at, std::min(chunk, end - at)))) return false;
  }
  return true;
}

bool UploadCall::Send(const v1::UploadRequest& request) { return writer_->Write(request); }

grpc::Status UploadCall::Finish() {
  writer_->WritesDone();
  return writer_->Finish();
}

void UploadCall::WritesDone() { writer_->WritesDone(); }

grpc::Status UploadCall::Await() { return writer_->Finish(); }

void UploadCall::Cancel() {
  context_.TryCancel();
  writer_->Finish();
}

grpc::Status Upload(v1::BulkService::Stub& stub, const UploadData& data, v1::UploadResponse* response, size_t chunk,
                    size_t begin, size_t end) {
  UploadCall call(stub);
  call.SendHeader(data.header);
  call.SendBytes(data.bytes, begin, std::min(end, data.bytes.size()), chunk);
  const grpc::Status status = call.Finish();
  if (response != nullptr) *response = call.response();
  return status;
}

DownloadedBytes DownloadBytes(v1::BulkService::Stub& stub, const v1::DownloadRequest& request) {
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

std::string Bytes(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

void ChunkCollector::Add(const v1::Chunk& chunk, int64_t begin) {
  EXPECT_EQ(chunk.offset(), begin + static_cast<int64_t>(bytes_.size()));
  EXPECT_EQ(chunk.crc32c(), io::Crc32c(chunk.data().data(), chunk.data().size()));
  EXPECT_LE(chunk.data().size(), size_t{1} << 20);
  EXPECT_FALSE(chunk.data().empty());
  bytes_ += chunk.data();
  ++chunks_;
}

std::vector<float> ChunkCollector::floats() const {
  std::vector<float> values(bytes_.size() / sizeof(float));
  std::memcpy(values.data(), bytes_.data(), values.size() * sizeof(float));
  return values;
}

}  // namespace intrawarp::server
