// SPDX-License-Identifier: Apache-2.0
// Media types of HTTP and MIME (RFC 9110, section 8.3.1): "multipart/related; type=\"application/dicom\"; boundary=x".
// Plain values and thread-safe functions.
#ifndef INTRAWARP_IO_DICOMWEB_MEDIA_TYPE_H_
#define INTRAWARP_IO_DICOMWEB_MEDIA_TYPE_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace intrawarp::dicomweb {

struct MediaType {
  // "application/dicom", in lower case.
  std::string name;
  // By name in lower case; values without their quotes.
  std::map<std::string, std::string> parameters;

  // Empty where there is none.
  std::string Parameter(const std::string& parameter) const;
};

// INVALID_ARGUMENT "content_type: ..." for a text that is not a media type, has more than 4 KiB, or names a parameter
// twice.
absl::StatusOr<MediaType> ParseMediaType(absl::string_view text);

}  // namespace intrawarp::dicomweb

#endif  // INTRAWARP_IO_DICOMWEB_MEDIA_TYPE_H_
