// SPDX-License-Identifier: Apache-2.0
// Messages that may hold a chunk, in slices that the first bytes of the input choose: what our decoder takes for a
// plain chunk is what protobuf reads, and what protobuf does not read ours does not take.
#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <vector>

#include "intrawarp/v1/bulk.pb.h"
#include "tests/fuzz/fuzz_input.h"
#include "wire/chunk.h"

namespace {

using intrawarp::fuzz::Require;
using intrawarp::v1::UploadRequest;

// Slices of 1 to 256 bytes by the `cuts`, the last one with all that remains.
grpc::ByteBuffer InSlices(const uint8_t* data, size_t size, const uint8_t* cuts, size_t count) {
  std::vector<grpc::Slice> slices;
  size_t at = 0;
  for (size_t i = 0; i < count && at < size; ++i) {
    const size_t length = std::min<size_t>(size - at, size_t{cuts[i]} + 1);
    slices.emplace_back(data + at, length);
    at += length;
  }
  slices.emplace_back(data + at, size - at);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kCuts = 4;
  if (size < kCuts) return 0;
  const uint8_t* const message = data + kCuts;
  const size_t length = size - kCuts;
  const grpc::ByteBuffer buffer = InSlices(message, length, data, kCuts);
  const auto chunk = intrawarp::wire::DecodeChunk(buffer, UploadRequest::kChunkFieldNumber);
  if (!chunk) return 0;
  UploadRequest request;
  Require(request.ParseFromArray(message, static_cast<int>(length)), "protobuf reads it");
  Require(request.has_chunk(), "protobuf sees a chunk");
  const intrawarp::v1::Chunk& expected = request.chunk();
  Require(chunk->offset() == expected.offset(), "the offset");
  Require(chunk->size() == static_cast<int64_t>(expected.data().size()), "the size");
  Require(chunk->crc32c().has_value() == expected.has_crc32c(), "whether there is a checksum");
  Require(!expected.has_crc32c() || *chunk->crc32c() == expected.crc32c(), "the checksum");
  const intrawarp::wire::ExpectedChunk place{0, int64_t{1} << 20, int64_t{1} << 20};
  const absl::Status fits = intrawarp::wire::CheckPlace(*chunk, place);
  intrawarp::fuzz::RequireRefusal(fits);
  if (!fits.ok()) return 0;
  std::vector<char> copy(static_cast<size_t>(chunk->size()));
  (void)intrawarp::wire::CopyChunk(*chunk, copy.data());
  Require(std::equal(copy.begin(), copy.end(), expected.data().begin()), "the payload");
  return 0;
}
