// SPDX-License-Identifier: Apache-2.0
#include "server/bulk/received_chunk.h"

#include "absl/strings/str_cat.h"
#include "server/status/errors.h"

namespace intrawarp::server {

absl::Status ValidatePlace(const ReceivedChunk& chunk, const wire::ExpectedChunk& expected) {
  const absl::Status checked = wire::CheckPlace(chunk, expected);
  if (!absl::IsOutOfRange(checked)) return checked;
  return WithReason(checked, v1::CHUNK_OUT_OF_ORDER,
                    {{"offset", absl::StrCat(chunk.offset())}, {"expected", absl::StrCat(expected.offset)}});
}

absl::Status CopyPayload(const ReceivedChunk& chunk, void* to, int64_t from) {
  const absl::Status copied = wire::CopyChunk(chunk, to, from);
  if (copied.ok()) return copied;
  return WithReason(copied, v1::CHUNK_CHECKSUM, {{"offset", absl::StrCat(chunk.offset())}});
}

}  // namespace intrawarp::server
