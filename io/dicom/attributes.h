// SPDX-License-Identifier: Apache-2.0
// Values of a DICOM data set. Numbers may be in any of DICOM's ways to write them; texts never reach a message.
// Thread-safe functions on data sets that nobody changes.
#ifndef INTRAWARP_IO_DICOM_ATTRIBUTES_H_
#define INTRAWARP_IO_DICOM_ATTRIBUTES_H_

#include <dcmtk/config/osconfig.h>
#include <dcmtk/dcmdata/dcitem.h>
#include <dcmtk/dcmdata/dctagkey.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace intrawarp::io::dicom {

// An attribute with its keyword of PS3.6, which stands in messages.
struct Attribute {
  DcmTagKey tag;
  const char* keyword;
};

// Whether the item itself has it, with a value.
bool Has(DcmItem& item, const Attribute& attribute);
// The components without spaces and NULs around them; empty when the attribute is absent, has no value or more than
// kMaxTextBytes.
std::vector<std::string> Texts(DcmItem& item, const Attribute& attribute);
// The first component, or "".
std::string Text(DcmItem& item, const Attribute& attribute);

// Empty when it is absent or has no value. INVALID_ARGUMENT "FIELD: ..." unless it has from `least` to `most` finite
// numbers.
absl::StatusOr<std::vector<double>> Numbers(DcmItem& item, const Attribute& attribute, absl::string_view field,
                                            size_t least, size_t most);
absl::StatusOr<std::optional<double>> Number(DcmItem& item, const Attribute& attribute, absl::string_view field);
// A whole number from `least` to `most`; `otherwise` when it is absent, or INVALID_ARGUMENT when there is none.
absl::StatusOr<int64_t> Integer(DcmItem& item, const Attribute& attribute, absl::string_view field, int64_t least,
                                int64_t most, std::optional<int64_t> otherwise = std::nullopt);

// The items of a sequence that the item itself has.
std::vector<DcmItem*> Items(DcmItem& item, const DcmTagKey& tag);
// The first of them, or null.
DcmItem* FirstItem(DcmItem* item, const DcmTagKey& tag);

inline constexpr size_t kMaxTextBytes = 1 << 20;

}  // namespace intrawarp::io::dicom

#endif  // INTRAWARP_IO_DICOM_ATTRIBUTES_H_
