// SPDX-License-Identifier: Apache-2.0
// Elements: a flat data set in implicit VR little endian, as command sets (PS3.7, section 6.3.1) and the identifiers of
// queries are. Thread-compatible values.
#ifndef INTRAWARP_SERVER_DIMSE_ELEMENTS_H_
#define INTRAWARP_SERVER_DIMSE_ELEMENTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace intrawarp::dimse {

// Group and element, as 0xGGGGEEEE.
using Tag = uint32_t;

class Elements {
 public:
  // INVALID_ARGUMENT "elements: ..." for lengths beyond the bytes, for tags that do not ascend, and for values of
  // undefined length.
  static absl::StatusOr<Elements> Parse(absl::string_view bytes);

  // Text is padded with `pad` to an even length: UIDs with NUL.
  void SetText(Tag tag, absl::string_view text, char pad = ' ');
  void SetUid(Tag tag, absl::string_view uid) { SetText(tag, uid, '\0'); }
  void Set16(Tag tag, uint16_t value);
  void Remove(Tag tag) { values_.erase(tag); }

  bool Has(Tag tag) const { return values_.count(tag) != 0; }
  // Without the padding; empty when it is absent.
  std::string Text(Tag tag) const;
  // nullopt when it is absent or has no two bytes.
  std::optional<uint16_t> Get16(Tag tag) const;

  std::string Encode() const;

 private:
  std::map<Tag, std::string> values_;
};

}  // namespace intrawarp::dimse

#endif  // INTRAWARP_SERVER_DIMSE_ELEMENTS_H_
