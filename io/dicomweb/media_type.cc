// SPDX-License-Identifier: Apache-2.0
#include "io/dicomweb/media_type.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"

namespace intrawarp::dicomweb {
namespace {

constexpr size_t kMaxBytes = 4096;

absl::Status Malformed() {
  return FieldError(absl::StatusCode::kInvalidArgument, "content_type", "is not a media type");
}

// RFC 9110, section 5.6.2.
bool IsTokenByte(char c) {
  return absl::ascii_isalnum(c) || absl::string_view("!#$%&'*+-.^_`|~").find(c) != absl::string_view::npos;
}

// Servers write types such as application/dicom without quotes, against the grammar.
bool IsValueByte(char c) { return IsTokenByte(c) || c == '/' || c == '=' || c == ':'; }

template <typename Accepts>
std::string TakeWhile(absl::string_view& text, Accepts accepts) {
  const auto end = std::find_if_not(text.begin(), text.end(), accepts);
  const size_t size = static_cast<size_t>(end - text.begin());
  std::string taken(text.substr(0, size));
  text.remove_prefix(size);
  return taken;
}

void SkipBlanks(absl::string_view& text) {
  TakeWhile(text, [](char c) { return c == ' ' || c == '\t'; });
}

bool Consume(absl::string_view& text, char c) {
  if (text.empty() || text.front() != c) return false;
  text.remove_prefix(1);
  return true;
}

absl::StatusOr<std::string> TakeQuoted(absl::string_view& text) {
  std::string value;
  while (!text.empty()) {
    char c = text.front();
    text.remove_prefix(1);
    if (c == '"') return value;
    if (c == '\\' && !text.empty()) {
      c = text.front();
      text.remove_prefix(1);
    }
    if (absl::ascii_iscntrl(c) && c != '\t') return Malformed();
    value += c;
  }
  return Malformed();
}

absl::Status TakeParameter(absl::string_view& text, MediaType& type) {
  const std::string name = absl::AsciiStrToLower(TakeWhile(text, IsTokenByte));
  if (name.empty() || !Consume(text, '=')) return Malformed();
  std::string value;
  if (Consume(text, '"')) {
    INTRAWARP_ASSIGN_OR_RETURN(value, TakeQuoted(text));
  } else {
    value = TakeWhile(text, IsValueByte);
    if (value.empty()) return Malformed();
  }
  return type.parameters.emplace(name, std::move(value)).second ? absl::OkStatus() : Malformed();
}

}  // namespace

std::string MediaType::Parameter(const std::string& parameter) const {
  const auto it = parameters.find(parameter);
  return it == parameters.end() ? "" : it->second;
}

absl::StatusOr<MediaType> ParseMediaType(absl::string_view text) {
  if (text.size() > kMaxBytes) return Malformed();
  MediaType type;
  SkipBlanks(text);
  const std::string major = TakeWhile(text, IsTokenByte);
  if (major.empty() || !Consume(text, '/')) return Malformed();
  const std::string minor = TakeWhile(text, IsTokenByte);
  if (minor.empty()) return Malformed();
  type.name = absl::AsciiStrToLower(major + "/" + minor);
  while (true) {
    SkipBlanks(text);
    if (text.empty()) return type;
    if (!Consume(text, ';')) return Malformed();
    SkipBlanks(text);
    if (text.empty()) return type;  // a trailing semicolon
    INTRAWARP_RETURN_IF_ERROR(TakeParameter(text, type));
  }
}

}  // namespace intrawarp::dicomweb
