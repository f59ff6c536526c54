// SPDX-License-Identifier: Apache-2.0
#include "io/dicom/attributes.h"

#include <dcmtk/dcmdata/dcsequen.h>

#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/file/file.h"

namespace intrawarp::io::dicom {
namespace {

absl::string_view Trimmed(absl::string_view text) {
  constexpr absl::string_view kSpaces("\0 \t\r\n", 5);
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == absl::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

absl::Status NotNumbers(absl::string_view field, const Attribute& attribute, absl::string_view what) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, absl::StrCat(attribute.keyword, " ", what));
}

}  // namespace

bool Has(DcmItem& item, const Attribute& attribute) { return item.tagExistsWithValue(attribute.tag); }

std::vector<std::string> Texts(DcmItem& item, const Attribute& attribute) {
  DcmElement* element = nullptr;
  if (item.findAndGetElement(attribute.tag, element).bad() || element == nullptr) return {};
  if (element->getLengthField() > kMaxTextBytes) return {};
  OFString value;
  if (element->getOFStringArray(value).bad()) return {};
  std::vector<std::string> texts;
  for (absl::string_view part : absl::StrSplit(absl::string_view(value.data(), value.size()), '\\')) {
    texts.emplace_back(Trimmed(part));
  }
  if (texts.size() == 1 && texts[0].empty()) texts.clear();
  return texts;
}

std::string Text(DcmItem& item, const Attribute& attribute) {
  const std::vector<std::string> texts = Texts(item, attribute);
  return texts.empty() ? "" : texts[0];
}

absl::StatusOr<std::vector<double>> Numbers(DcmItem& item, const Attribute& attribute, absl::string_view field,
                                            size_t least, size_t most) {
  const std::vector<std::string> texts = Texts(item, attribute);
  std::vector<double> numbers;
  if (texts.empty()) return numbers;
  if (texts.size() < least || texts.size() > most) {
    return NotNumbers(field, attribute, absl::StrCat("has ", texts.size(), " values, must have ", least));
  }
  for (absl::string_view text : texts) {
    if (!text.empty() && text[0] == '+') text.remove_prefix(1);
    const absl::StatusOr<double> number = ParseFinite(text);
    if (!number.ok()) return NotNumbers(field, attribute, "is not a finite number");
    numbers.push_back(*number);
  }
  return numbers;
}

absl::StatusOr<std::optional<double>> Number(DcmItem& item, const Attribute& attribute, absl::string_view field) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<double> numbers, Numbers(item, attribute, field, 1, 1));
  if (numbers.empty()) return std::nullopt;
  return numbers[0];
}

absl::StatusOr<int64_t> Integer(DcmItem& item, const Attribute& attribute, absl::string_view field, int64_t least,
                                int64_t most, std::optional<int64_t> otherwise) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<double> number, Number(item, attribute, field));
  if (!number && otherwise) return *otherwise;
  if (!number) return NotNumbers(field, attribute, "is missing");
  if (*number != std::floor(*number) || *number < static_cast<double>(least) || *number > static_cast<double>(most)) {
    return NotNumbers(field, attribute, absl::StrCat("must be a whole number from ", least, " to ", most));
  }
  return static_cast<int64_t>(*number);
}

std::vector<DcmItem*> Items(DcmItem& item, const DcmTagKey& tag) {
  DcmSequenceOfItems* sequence = nullptr;
  if (item.findAndGetSequence(tag, sequence).bad() || sequence == nullptr) return {};
  std::vector<DcmItem*> items;
  for (DcmObject* next = sequence->nextInContainer(nullptr); next != nullptr; next = sequence->nextInContainer(next)) {
    if (auto* inner = dynamic_cast<DcmItem*>(next); inner != nullptr) items.push_back(inner);
  }
  return items;
}

DcmItem* FirstItem(DcmItem* item, const DcmTagKey& tag) {
  if (item == nullptr) return nullptr;
  DcmItem* inner = nullptr;
  return item->findAndGetSequenceItem(tag, inner, 0).good() ? inner : nullptr;
}

}  // namespace intrawarp::io::dicom
