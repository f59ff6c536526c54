// SPDX-License-Identifier: Apache-2.0
#include "io/dicom/mosaic.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/file/file.h"

namespace intrawarp::io::dicom {
namespace {

constexpr uint32_t kMaxTags = 1024;
constexpr uint32_t kMaxItems = 4096;
constexpr int kMaxImages = 4096;
constexpr size_t kTagName = 64;

absl::Status Broken() {
  return FieldError(absl::StatusCode::kInvalidArgument, "mosaic", "the CSA header is not well-formed");
}

// Little-endian words of a header, never beyond its end.
class CsaReader {
 public:
  explicit CsaReader(absl::Span<const uint8_t> bytes) : rest_(bytes) {}

  absl::StatusOr<absl::Span<const uint8_t>> Take(size_t count) {
    if (count > rest_.size()) return Broken();
    const absl::Span<const uint8_t> taken = rest_.subspan(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  absl::StatusOr<uint32_t> Word() {
    INTRAWARP_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> b, Take(4));
    return static_cast<uint32_t>(b[0]) | static_cast<uint32_t>(b[1]) << 8 | static_cast<uint32_t>(b[2]) << 16 |
           static_cast<uint32_t>(b[3]) << 24;
  }
  size_t left() const { return rest_.size(); }

 private:
  absl::Span<const uint8_t> rest_;
};

absl::string_view UntilNul(absl::Span<const uint8_t> bytes) {
  const absl::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return text.substr(0, text.find('\0'));
}

struct CsaTag {
  std::string name;
  std::vector<double> numbers;  // those items that are numbers
};

// An item: four words, the second of which is its length, and the text padded to a multiple of four.
absl::Status ReadItem(CsaReader& reader, CsaTag* tag) {
  INTRAWARP_RETURN_IF_ERROR(reader.Word().status());
  INTRAWARP_ASSIGN_OR_RETURN(const uint32_t length, reader.Word());
  INTRAWARP_RETURN_IF_ERROR(reader.Take(8).status());
  INTRAWARP_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> bytes, reader.Take(length));
  INTRAWARP_RETURN_IF_ERROR(reader.Take((4 - length % 4) % 4).status());
  absl::string_view text = UntilNul(bytes);
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  const absl::StatusOr<double> number = ParseFinite(text);
  if (number.ok()) tag->numbers.push_back(*number);
  return absl::OkStatus();
}

absl::StatusOr<CsaTag> ReadTag(CsaReader& reader) {
  CsaTag tag;
  INTRAWARP_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> name, reader.Take(kTagName));
  tag.name = std::string(UntilNul(name));
  INTRAWARP_RETURN_IF_ERROR(reader.Take(12).status());  // multiplicity, representation, data type
  INTRAWARP_ASSIGN_OR_RETURN(const uint32_t items, reader.Word());
  INTRAWARP_RETURN_IF_ERROR(reader.Word().status());
  if (items > kMaxItems) return Broken();
  for (uint32_t i = 0; i < items; ++i) INTRAWARP_RETURN_IF_ERROR(ReadItem(reader, &tag));
  return tag;
}

}  // namespace

absl::StatusOr<CsaMosaic> ParseCsaMosaic(absl::Span<const uint8_t> header) {
  CsaReader reader(header);
  INTRAWARP_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> magic, reader.Take(4));
  if (std::memcmp(magic.data(), "SV10", 4) != 0) {
    return FieldError(absl::StatusCode::kUnimplemented, "mosaic", "a CSA header that is not of version SV10");
  }
  INTRAWARP_RETURN_IF_ERROR(reader.Take(4).status());
  INTRAWARP_ASSIGN_OR_RETURN(const uint32_t tags, reader.Word());
  INTRAWARP_RETURN_IF_ERROR(reader.Word().status());
  if (tags > kMaxTags) return Broken();
  CsaMosaic mosaic;
  bool has_normal = false;
  for (uint32_t i = 0; i < tags; ++i) {
    INTRAWARP_ASSIGN_OR_RETURN(const CsaTag tag, ReadTag(reader));
    if (tag.name == "NumberOfImagesInMosaic" && !tag.numbers.empty()) {
      if (!(tag.numbers[0] >= 1 && tag.numbers[0] <= kMaxImages)) return Broken();
      mosaic.images = static_cast<int>(tag.numbers[0]);
    }
    if (tag.name == "SliceNormalVector" && tag.numbers.size() >= 3) {
      mosaic.slice_normal = {tag.numbers[0], tag.numbers[1], tag.numbers[2]};
      has_normal = true;
    }
  }
  if (mosaic.images > 0 && !has_normal) {
    return FieldError(absl::StatusCode::kInvalidArgument, "mosaic", "SliceNormalVector is missing");
  }
  return mosaic;
}

}  // namespace intrawarp::io::dicom
