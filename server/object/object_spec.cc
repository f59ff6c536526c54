// SPDX-License-Identifier: Apache-2.0
#include "server/object/object_spec.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "io/file/digest.h"
#include "server/base/names.h"
#include "server/status/errors.h"

namespace intrawarp::server {

absl::Status CheckObjectSpec(const ObjectSpec& spec, int64_t content_bytes, int64_t max_bytes) {
  if (!spec.id.empty()) INTRAWARP_RETURN_IF_ERROR(ValidateId(spec.id, "id"));
  if (spec.total_bytes != content_bytes) {
    return InvalidField("total_bytes", absl::StrCat("is ", spec.total_bytes, ", the content makes ", content_bytes));
  }
  if (content_bytes > max_bytes) {
    return InvalidField("total_bytes", absl::StrCat("is ", content_bytes, ", at most ", max_bytes, " are accepted"));
  }
  if (spec.content_digest.size() == io::Sha256::kBytes) return absl::OkStatus();
  return InvalidField("sha256",
                      absl::StrCat("has ", spec.content_digest.size(), " bytes, must be ", io::Sha256::kBytes));
}

Claim ObjectClaim(const ObjectSpec& spec, int device) {
  Claim claim;
  claim.device = device;
  claim.resident_bytes = spec.resident_bytes;
  claim.workspace_bytes = spec.workspace_bytes;
  claim.uploading_bytes = std::max(spec.resident_bytes, spec.total_bytes + spec.content_bytes);
  claim.transforms = spec.transforms;
  claim.owner = spec.owner;
  claim.is_short = true;
  return claim;
}

Grant TakeReservation(Grant& grant, const ObjectSpec& spec) {
  return grant.Split({.resident_bytes = spec.resident_bytes, .transforms = spec.transforms});
}

}  // namespace intrawarp::server
