// SPDX-License-Identifier: Apache-2.0
// Texts that an archive sends, as UTF-8 that can be shown. Thread-safe functions.
#ifndef INTRAWARP_SERVER_PACS_DICOM_TEXT_H_
#define INTRAWARP_SERVER_PACS_DICOM_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace intrawarp::server {

// Such a text has no more bytes.
inline constexpr size_t kMaxTextBytes = 256;

// UTF-8 without control characters and without spaces at either end, cut to kMaxTextBytes between characters.
// `character_set`: DICOM's SpecificCharacterSet. UTF-8 (ISO_IR 192), Latin-1 (ISO_IR 100) and ASCII are known; what is
// not ASCII in any other set, or is not well-formed, becomes '?'.
std::string ShownText(absl::string_view text, absl::string_view character_set);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PACS_DICOM_TEXT_H_
