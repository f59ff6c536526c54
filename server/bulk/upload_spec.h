// SPDX-License-Identifier: Apache-2.0
// The description of an object by the header of its upload, whatever its kind.
#ifndef INTRAWARP_SERVER_BULK_UPLOAD_SPEC_H_
#define INTRAWARP_SERVER_BULK_UPLOAD_SPEC_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "intrawarp/v1/bulk.pb.h"
#include "server/object/object_spec.h"

namespace intrawarp::server {

// "{field}: ..." unless 1 to 64 characters.
absl::Status ValidateUploadId(absl::string_view upload_id, absl::string_view field);

// The common part of a header whose content makes `content_bytes` and may have `max_bytes`: INVALID_ARGUMENT
// "{field}: ...". The identity is left to the kind.
absl::StatusOr<ObjectSpec> ParseUploadSpec(const v1::UploadHeader& header, int64_t content_bytes, int64_t max_bytes);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BULK_UPLOAD_SPEC_H_
