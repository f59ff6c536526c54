// SPDX-License-Identifier: Apache-2.0
// What tests do with the bulk service over the wire.
#ifndef INTRAWARP_TESTS_SERVER_BULK_CLIENT_H_
#define INTRAWARP_TESTS_SERVER_BULK_CLIENT_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "intrawarp/v1/bulk.grpc.pb.h"
#include "io/file/crc32c.h"
#include "io/file/digest.h"

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
  explicit UploadCall(v1::BulkService::Stub& stub, std::chrono::milliseconds deadline = std::chrono::seconds(60));
  bool SendHeader(const v1::UploadHeader& header);
  bool SendChunk(int64_t offset, const std::string& data) { return SendChunk(MakeChunk(offset, data)); }
  bool SendChunk(const v1::Chunk& chunk);
  // [begin, end) in chunks.
  bool SendBytes(const std::string& bytes, size_t begin, size_t end, size_t chunk);
  bool Send(const v1::UploadRequest& request);
  grpc::Status Finish();
  void WritesDone();
  // Without ending the stream of requests.
  grpc::Status Await();
  void Cancel();
  const v1::UploadResponse& response() const { return response_; }

 private:
  grpc::ClientContext context_;
  v1::UploadResponse response_;
  std::unique_ptr<grpc::ClientWriter<v1::UploadRequest>> writer_;
};

// Sends the header and the bytes from `begin` to `end`, and ends the stream.
grpc::Status Upload(v1::BulkService::Stub& stub, const UploadData& data, v1::UploadResponse* response = nullptr,
                    size_t chunk = 1000, size_t begin = 0, size_t end = std::string::npos);

struct DownloadedBytes {
  grpc::Status status;
  v1::DownloadHeader header;
  std::string bytes;  // from the offset on
  int chunks = 0;
};

// Checks on the way that there is one header and that chunks come in order, with their checksums.
DownloadedBytes DownloadBytes(v1::BulkService::Stub& stub, const v1::DownloadRequest& request);

// The voxels or components as they lie in memory.
std::string Bytes(const std::vector<float>& values);

// Bytes of a chunked stream, checking that each chunk continues it.
class ChunkCollector {
 public:
  // `begin`: where the stream begins.
  void Add(const v1::Chunk& chunk, int64_t begin = 0);
  const std::string& bytes() const { return bytes_; }
  int chunks() const { return chunks_; }
  std::vector<float> floats() const;

 private:
  std::string bytes_;
  int chunks_ = 0;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_TESTS_SERVER_BULK_CLIENT_H_
