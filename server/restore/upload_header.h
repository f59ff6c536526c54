// SPDX-License-Identifier: Apache-2.0
// The header of an upload, of whatever kind.
#ifndef INTRAWARP_SERVER_RESTORE_UPLOAD_HEADER_H_
#define INTRAWARP_SERVER_RESTORE_UPLOAD_HEADER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "intrawarp/v1/bulk.pb.h"
#include "server/bulk/upload_kind.h"

namespace intrawarp::server {

// INVALID_ARGUMENT, with paths relative to the header. Allocates nothing of the sizes that it reads. Thread-safe.
absl::StatusOr<std::unique_ptr<UploadKind>> ParseUploadHeader(const v1::UploadHeader& header,
                                                              const ServerContext& context);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_RESTORE_UPLOAD_HEADER_H_
