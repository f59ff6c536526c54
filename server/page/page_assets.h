// SPDX-License-Identifier: Apache-2.0
// The files of server/page/assets, compiled in (cmake/EmbedAssets.cmake).
#ifndef INTRAWARP_SERVER_PAGE_PAGE_ASSETS_H_
#define INTRAWARP_SERVER_PAGE_PAGE_ASSETS_H_

#include <cstddef>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace intrawarp::server {

struct PageAsset {
  // "page.js"
  absl::string_view name;
  absl::string_view content_type;
  // With quotes: the SHA-256 of the bytes.
  absl::string_view etag;
  absl::string_view bytes;
};

absl::Span<const PageAsset> PageAssets();

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PAGE_PAGE_ASSETS_H_
