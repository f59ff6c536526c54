// SPDX-License-Identifier: Apache-2.0
#include "server/audit/audit_chain.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/base/status_macros.h"
#include "io/file/digest.h"

namespace intrawarp::audit {
namespace {

constexpr size_t kReadBytes = size_t{64} << 10;
constexpr size_t kPositionDigits = 20 + 1 + kHashDigits, kCheckDigits = 16;
constexpr size_t kLeastKeyBytes = 16, kMostKeyBytes = 4096;

bool IsHash(absl::string_view text) {
  return text.size() == kHashDigits && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
         });
}

}  // namespace

std::string ChainHash::Next(absl::string_view previous, absl::string_view json) const {
  const std::string text = absl::StrCat(previous, json);
  if (key_.empty()) return absl::BytesToHexString(io::Sha256Of(text.data(), text.size()));
  unsigned char mac[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  HMAC(EVP_sha256(), key_.data(), static_cast<int>(key_.size()), reinterpret_cast<const unsigned char*>(text.data()),
       text.size(), mac, &size);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(mac), size));
}

std::optional<Line> ParseLine(absl::string_view line) {
  if (line.size() <= kHashDigits + 1 || line[kHashDigits] != ' ') return std::nullopt;
  Line parsed{line.substr(0, kHashDigits), line.substr(kHashDigits + 1), 0};
  absl::string_view rest = parsed.json;
  if (!IsHash(parsed.hash) || !absl::ConsumePrefix(&rest, "{\"seq\":")) return std::nullopt;
  const absl::string_view digits = rest.substr(0, rest.find_first_of(",}"));
  if (!absl::SimpleAtoi(digits, &parsed.seq) || parsed.seq < 1) return std::nullopt;
  return parsed;
}

absl::StatusOr<std::string> ReadKey(state::FileLayer& files, const std::string& path) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<state::File> file, files.Open(path, state::OpenMode::kRead));
  std::string text(kMostKeyBytes + 1, '\0');
  INTRAWARP_ASSIGN_OR_RETURN(const size_t size, file->ReadAt(0, text.data(), text.size()));
  text.resize(size);
  const absl::string_view key = absl::StripAsciiWhitespace(text);
  if (key.size() < kLeastKeyBytes || text.size() > kMostKeyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("audit_key: the file must hold ", kLeastKeyBytes, " to ", kMostKeyBytes, " bytes"));
  }
  return std::string(key);
}

std::string AuditFileName(int64_t number) { return absl::StrFormat("audit-%08d.log", number); }

std::optional<int64_t> AuditFileNumber(absl::string_view name) {
  absl::string_view digits = name;
  int64_t number = 0;
  if (!absl::ConsumePrefix(&digits, "audit-") || !absl::ConsumeSuffix(&digits, ".log")) return std::nullopt;
  if (!absl::SimpleAtoi(digits, &number) || number < 1 || AuditFileName(number) != name) return std::nullopt;
  return number;
}

absl::StatusOr<Position> ParsePosition(absl::string_view text) {
  Position position;
  const std::vector<absl::string_view> parts = absl::StrSplit(absl::StripAsciiWhitespace(text), ' ');
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &position.seq) || position.seq < 0 || !IsHash(parts[1])) {
    return absl::InvalidArgumentError("head: must be a number and 64 hexadecimal digits");
  }
  position.hash = std::string(parts[1]);
  return position;
}

std::string FormatPosition(const Position& position) { return absl::StrCat(position.seq, " ", position.hash); }

std::string FormatHeadLine(const Position& position) {
  const std::string text = absl::StrFormat("%020d %s", position.seq, position.hash);
  const std::string check = absl::BytesToHexString(io::Sha256Of(text.data(), text.size())).substr(0, kCheckDigits);
  return absl::StrCat(text, " ", check, "\n");
}

absl::StatusOr<std::optional<Head>> ReadHead(state::FileLayer& files, const std::string& directory) {
  auto file = files.Open(absl::StrCat(directory, "/head"), state::OpenMode::kRead);
  if (absl::IsNotFound(file.status())) return std::nullopt;
  INTRAWARP_RETURN_IF_ERROR(file.status());
  std::string text(2 * kHeadLineBytes, '\0');
  INTRAWARP_ASSIGN_OR_RETURN(const size_t size, (*file)->ReadAt(0, text.data(), text.size()));
  if (size == 0) return std::nullopt;
  std::optional<Head> newest;
  for (int line = 0; line < 2; ++line) {
    const std::string held = text.substr(static_cast<size_t>(line) * kHeadLineBytes, kHeadLineBytes);
    const absl::StatusOr<Position> position = ParsePosition(held.substr(0, kPositionDigits));
    if (!position.ok() || FormatHeadLine(*position) != held) continue;
    if (!newest || position->seq > newest->position.seq) newest = {*position, line};
  }
  if (!newest) return absl::DataLossError("the file head is damaged");
  return newest;
}

absl::StatusOr<std::optional<absl::string_view>> LineReader::Next() {
  for (;;) {
    const size_t end = buffer_.find('\n', begin_);
    const size_t bytes = std::min(end, buffer_.size()) - begin_;  // of the line, as far as it is known
    if (bytes > kMaxLineBytes) return absl::DataLossError("a line is longer than any record");
    if (end != std::string::npos) {
      const absl::string_view line = absl::string_view(buffer_).substr(begin_, bytes);
      offset_ += static_cast<int64_t>(line.size()) + 1;
      begin_ = end + 1;
      return line;
    }
    buffer_.erase(0, std::exchange(begin_, 0));
    const size_t held = buffer_.size();
    buffer_.resize(held + kReadBytes);
    absl::StatusOr<size_t> read = file_.ReadAt(read_, &buffer_[held], kReadBytes);
    buffer_.resize(held + read.value_or(0));
    INTRAWARP_RETURN_IF_ERROR(read.status());
    if (*read == 0) return std::nullopt;
    read_ += static_cast<int64_t>(*read);
  }
}

}  // namespace intrawarp::audit
