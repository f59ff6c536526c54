// SPDX-License-Identifier: Apache-2.0
// The checks of a chunk that came (wire/chunk.h), with the reasons that clients see. Pure functions.
#ifndef INTRAWARP_SERVER_BULK_RECEIVED_CHUNK_H_
#define INTRAWARP_SERVER_BULK_RECEIVED_CHUNK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "wire/chunk.h"

namespace intrawarp::server {

using wire::ReceivedChunk;

// wire::CheckPlace, with the reason CHUNK_OUT_OF_ORDER.
absl::Status ValidatePlace(const ReceivedChunk& chunk, const wire::ExpectedChunk& expected);
// wire::CopyChunk, with the reason CHUNK_CHECKSUM.
absl::Status CopyPayload(const ReceivedChunk& chunk, void* to, int64_t from = 0);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BULK_RECEIVED_CHUNK_H_
