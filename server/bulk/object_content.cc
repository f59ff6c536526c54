// SPDX-License-Identifier: Apache-2.0
#include "server/bulk/object_content.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/base/status_macros.h"
#include "io/file/digest.h"

namespace intrawarp::server {

namespace {

// The stream has one piece in flight: a longer copy to pageable memory keeps other streams' copies waiting.
constexpr int64_t kPieceBytes = int64_t{2} << 20;

}  // namespace

int64_t ContentClaim(const ServerContext& context, int64_t bytes) {
  return context.durable.enabled() ? std::min(bytes, context.ledger.capacity(Resource::kUploading)) : 0;
}

absl::StatusOr<ObjectContent> CopyContent(const ExecContext& ctx, v1::UploadHeader header, const DeviceBytes& from,
                                          Grant grant) {
  ObjectContent content;
  content.header = std::move(header);
  content.bytes = TotalBytes(from);
  grant.Shrink({.uploading_bytes = content.bytes});
  content.grant = std::move(grant);
  if (content.bytes == 0) return content;
  INTRAWARP_ASSIGN_OR_RETURN(content.memory, StagingMemory::Reserve(content.bytes));
  for (int64_t begin = 0; begin < content.bytes; begin += kPieceBytes) {
    const int64_t piece = std::min(kPieceBytes, content.bytes - begin);
    const absl::Status copied = CopyRange(ctx, from, begin, piece, content.memory.data() + begin);
    // Also after an error: nothing may write into the memory any more.
    const absl::Status synchronized = ctx.device().Synchronize(ctx.stream());
    INTRAWARP_RETURN_IF_ERROR(copied);
    INTRAWARP_RETURN_IF_ERROR(synchronized);
  }
  return content;
}

absl::StatusOr<ObjectOrigin> KeepContent(DurableObjects& durable, ObjectContent content) {
  const absl::Span<const char> bytes(content.memory.data(), static_cast<size_t>(content.bytes));
  const std::string digest = io::Sha256Of(bytes.data(), bytes.size());
  ObjectOrigin origin;
  INTRAWARP_ASSIGN_OR_RETURN(origin.payload, durable.Keep(digest, bytes));
  // An upload's header must have an id.
  content.header.set_upload_id("kept");
  content.header.set_total_bytes(content.bytes);
  content.header.set_sha256(digest);
  origin.header = content.header.SerializeAsString();
  return origin;
}

}  // namespace intrawarp::server
