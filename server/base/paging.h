// SPDX-License-Identifier: Apache-2.0
// Pages of lists. Pure functions.
#ifndef INTRAWARP_SERVER_BASE_PAGING_H_
#define INTRAWARP_SERVER_BASE_PAGING_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace intrawarp::server {

// How many a page holds for a request's page_size: 100 for 0, at most 1000. INVALID_ARGUMENT "page_size: ..." below 0.
absl::StatusOr<int> PageSize(int32_t page_size);
// An opaque page token, which names the id that a page ended with; the object need not exist any more. A token is bound
// to its collection ("volumes").
std::string PageToken(absl::string_view collection, absl::string_view last_id);
// The id in a token; "" for no token. The error names "page_token" for a string that is not a token of the collection.
absl::StatusOr<std::string> ParsePageToken(absl::string_view collection, absl::string_view token);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_BASE_PAGING_H_
