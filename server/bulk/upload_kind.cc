// SPDX-License-Identifier: Apache-2.0
#include "server/bulk/upload_kind.h"

#include "absl/strings/str_cat.h"
#include "io/file/digest.h"
#include "server/context/limits.h"
#include "wire/convert.h"

namespace intrawarp::server {

absl::StatusOr<UploadSpec> ParseUploadSpec(const v1::UploadHeader& header, int64_t content_bytes, int64_t max_bytes) {
  UploadSpec spec;
  if (!header.id().empty()) INTRAWARP_RETURN_IF_ERROR(ValidateId(header.id(), "id"));
  INTRAWARP_RETURN_IF_ERROR(ValidateUploadId(header.upload_id(), "upload_id"));
  spec.id = header.id();
  spec.upload_id = header.upload_id();
  if (header.total_bytes() != content_bytes) {
    return InvalidField("total_bytes",
                        absl::StrCat("is ", header.total_bytes(), ", the content makes ", content_bytes));
  }
  if (content_bytes > max_bytes) {
    return InvalidField("total_bytes", absl::StrCat("is ", content_bytes, ", at most ", max_bytes, " are accepted"));
  }
  spec.total_bytes = content_bytes;
  if (header.sha256().size() != io::Sha256::kBytes) {
    return InvalidField("sha256", absl::StrCat("has ", header.sha256().size(), " bytes, must be ", io::Sha256::kBytes));
  }
  spec.content_digest = header.sha256();
  if (header.has_ttl()) {
    INTRAWARP_ASSIGN_OR_RETURN(spec.ttl, DurationFromProto(header.ttl(), "ttl", kMaxTtl));
  }
  return spec;
}

}  // namespace intrawarp::server
