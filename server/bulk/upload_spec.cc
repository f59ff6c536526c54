// SPDX-License-Identifier: Apache-2.0
#include "server/bulk/upload_spec.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "server/base/names.h"
#include "server/context/limits.h"
#include "server/status/errors.h"
#include "wire/convert.h"

namespace intrawarp::server {

absl::Status ValidateUploadId(absl::string_view upload_id, absl::string_view field) {
  constexpr int kMaxCharacters = 64;
  // protobuf has made sure that it is UTF-8; bytes that continue a character are 10xxxxxx.
  const auto characters = std::count_if(upload_id.begin(), upload_id.end(), [](char c) { return (c & 0xc0) != 0x80; });
  if (characters >= 1 && characters <= kMaxCharacters) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("must have 1 to ", kMaxCharacters, " characters"));
}

absl::StatusOr<ObjectSpec> ParseUploadSpec(const v1::UploadHeader& header, int64_t content_bytes, int64_t max_bytes) {
  ObjectSpec spec;
  if (!header.id().empty()) INTRAWARP_RETURN_IF_ERROR(ValidateId(header.id(), "id"));
  INTRAWARP_RETURN_IF_ERROR(ValidateUploadId(header.upload_id(), "upload_id"));
  spec.id = header.id();
  spec.upload_id = header.upload_id();
  spec.total_bytes = header.total_bytes();
  spec.content_digest = header.sha256();
  INTRAWARP_RETURN_IF_ERROR(CheckObjectSpec(spec, content_bytes, max_bytes));
  if (header.has_ttl()) {
    INTRAWARP_ASSIGN_OR_RETURN(spec.ttl, DurationFromProto(header.ttl(), "ttl", kMaxTtl));
  }
  return spec;
}

}  // namespace intrawarp::server
