// SPDX-License-Identifier: Apache-2.0
// How a file that lists archives names one that speaks DICOMweb:
//
//   URL [ca=PATH] [token_file=PATH] [plain]
//
// URL is the base of the archive's services (https://HOST[:PORT]/PATH), `ca` holds the authorities of its certificate
// (PEM; the system's without it), `token_file` a bearer token. `plain` allows http to another machine, without a token:
// images in plain text must be asked for. Thread-safe.
#ifndef INTRAWARP_SERVER_PACS_DICOMWEB_REMOTE_H_
#define INTRAWARP_SERVER_PACS_DICOMWEB_REMOTE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "io/dicomweb/http.h"

namespace intrawarp::server {

// Words that are not options of DICOMweb go to `others`. Reads no file that they name. INVALID_ARGUMENT, which holds no
// text of the words.
absl::StatusOr<dicomweb::HttpOptions> ParseDicomwebRemote(absl::Span<const absl::string_view> words,
                                                          std::vector<absl::string_view>& others);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PACS_DICOMWEB_REMOTE_H_
