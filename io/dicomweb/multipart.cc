// SPDX-License-Identifier: Apache-2.0
#include "io/dicomweb/multipart.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"

namespace intrawarp::dicomweb {
namespace {

constexpr size_t kMaxBoundaryBytes = 70;
// A delimiter's trailing blanks.
constexpr size_t kMaxBlanks = 256;

absl::Status Broken(absl::string_view why) { return FieldError(absl::StatusCode::kDataLoss, "multipart", why); }
absl::Status TooMuch(absl::string_view why) {
  return FieldError(absl::StatusCode::kResourceExhausted, "multipart", why);
}

// RFC 2046, section 5.1.1; some servers use other printable characters too.
bool IsBoundary(absl::string_view text) {
  return !text.empty() && text.size() <= kMaxBoundaryBytes && text.back() != ' ' &&
         std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isprint(c); });
}

struct PartHeader {
  std::string content_type;
  int64_t bytes = -1;
};

absl::StatusOr<PartHeader> ParseHeader(absl::string_view text) {
  PartHeader header;
  for (absl::string_view line : absl::StrSplit(text, "\r\n")) {
    const size_t colon = line.find(':');
    if (line.empty() || line.front() == ' ' || line.front() == '\t') continue;  // a folded line says nothing here
    if (colon == absl::string_view::npos) return Broken("a part's header is malformed");
    const absl::string_view name = line.substr(0, colon);
    const absl::string_view value = absl::StripAsciiWhitespace(line.substr(colon + 1));
    if (absl::EqualsIgnoreCase(name, "Content-Type")) header.content_type = std::string(value);
    if (absl::EqualsIgnoreCase(name, "Content-Transfer-Encoding") && !absl::EqualsIgnoreCase(value, "binary") &&
        !absl::EqualsIgnoreCase(value, "8bit") && !absl::EqualsIgnoreCase(value, "7bit")) {
      return FieldError(absl::StatusCode::kUnimplemented, "multipart", "a part is encoded for transfer");
    }
    if (!absl::EqualsIgnoreCase(name, "Content-Length")) continue;
    if (!absl::SimpleAtoi(value, &header.bytes) || header.bytes < 0) return Broken("a part's length is not a number");
  }
  return header;
}

}  // namespace

absl::StatusOr<MultipartReader> MultipartReader::Create(absl::string_view boundary, const MultipartLimits& limits,
                                                        PartSink& sink) {
  if (IsBoundary(boundary)) return MultipartReader(absl::StrCat("\r\n--", boundary), limits, sink);
  return FieldError(absl::StatusCode::kInvalidArgument, "content_type", "has no boundary of 1 to 70 characters");
}

absl::Status MultipartReader::Take(absl::string_view bytes) {
  if (!status_.ok()) return status_;
  // Bytes that are done with go before new ones come, so that the buffer stays small.
  buffer_.erase(0, begin_);
  begin_ = 0;
  buffer_.append(bytes.data(), bytes.size());
  return status_ = Advance();
}

absl::Status MultipartReader::Finish() {
  if (!status_.ok()) return status_;
  return state_ == State::kEpilogue ? absl::OkStatus() : Broken("ends before its closing delimiter");
}

absl::Status MultipartReader::Advance() {
  while (true) {
    INTRAWARP_ASSIGN_OR_RETURN(const bool moved, Step());
    if (!moved) return absl::OkStatus();
  }
}

// False when more bytes are needed.
absl::StatusOr<bool> MultipartReader::Step() {
  switch (state_) {
    case State::kPreamble:
      return SkipPreamble();
    case State::kDelimiter:
      return EndDelimiter();
    case State::kHeader:
      return ReadHeader();
    case State::kBody:
      return ReadBody();
    case State::kEpilogue:
      break;
  }
  return SkipEpilogue();
}

absl::Status MultipartReader::PassOver(size_t bytes) {
  surplus_ += static_cast<int64_t>(bytes);
  begin_ += bytes;
  return surplus_ <= limits_.max_surplus_bytes ? absl::OkStatus() : TooMuch("too many bytes outside of its parts");
}

absl::StatusOr<bool> MultipartReader::SkipPreamble() {
  const size_t at = rest().find(delimiter_);
  if (at == absl::string_view::npos) {
    const size_t kept = std::min(rest().size(), delimiter_.size() - 1);
    INTRAWARP_RETURN_IF_ERROR(PassOver(rest().size() - kept));
    return false;
  }
  INTRAWARP_RETURN_IF_ERROR(PassOver(at));
  begin_ += delimiter_.size();
  state_ = State::kDelimiter;
  return true;
}

// A delimiter is followed by "--" after the last part, otherwise by the end of its line.
absl::StatusOr<bool> MultipartReader::EndDelimiter() {
  const absl::string_view text = rest();
  if (text.empty() || text == "-") return false;
  if (absl::StartsWith(text, "--")) {
    begin_ += 2;
    state_ = State::kEpilogue;
    return true;
  }
  const size_t blanks = std::min(text.find_first_not_of(" \t"), text.size());
  if (blanks > kMaxBlanks) return Broken("a delimiter does not end");
  const absl::string_view line_end = text.substr(blanks, 2);
  if (line_end.empty() || line_end == "\r") return false;
  if (line_end != "\r\n") return Broken("a delimiter is followed by something else");
  if (parts_ >= limits_.max_parts) return TooMuch("too many parts");
  // The line's end stays: it is the blank line where the header is empty.
  begin_ += blanks;
  state_ = State::kHeader;
  return true;
}

absl::StatusOr<bool> MultipartReader::ReadHeader() {
  constexpr absl::string_view kEnd = "\r\n\r\n";
  const size_t end = rest().find(kEnd);
  const bool is_there = end != absl::string_view::npos;
  if (std::min(end, rest().size()) > limits_.max_header_bytes) return TooMuch("a part's header is too long");
  if (!is_there) return false;
  INTRAWARP_ASSIGN_OR_RETURN(const PartHeader header, ParseHeader(rest().substr(0, end)));
  if (header.bytes > limits_.max_part_bytes) return TooMuch("a part is too large");
  announced_bytes_ = header.bytes;
  part_bytes_ = 0;
  begin_ += end + kEnd.size();
  state_ = State::kBody;
  INTRAWARP_RETURN_IF_ERROR(sink_->Begin(header.content_type));
  return true;
}

absl::Status MultipartReader::Emit(size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  part_bytes_ += static_cast<int64_t>(bytes);
  if (part_bytes_ > limits_.max_part_bytes) return TooMuch("a part is too large");
  INTRAWARP_RETURN_IF_ERROR(sink_->Append(rest().substr(0, bytes)));
  begin_ += bytes;
  return absl::OkStatus();
}

absl::StatusOr<bool> MultipartReader::ReadBody() {
  const size_t at = rest().find(delimiter_);
  if (at == absl::string_view::npos) {
    const size_t kept = std::min(rest().size(), delimiter_.size() - 1);
    INTRAWARP_RETURN_IF_ERROR(Emit(rest().size() - kept));
    return false;
  }
  INTRAWARP_RETURN_IF_ERROR(Emit(at));
  if (announced_bytes_ >= 0 && announced_bytes_ != part_bytes_) return Broken("a part is not as long as it says");
  INTRAWARP_RETURN_IF_ERROR(sink_->End());
  ++parts_;
  begin_ += delimiter_.size();
  state_ = State::kDelimiter;
  return true;
}

absl::StatusOr<bool> MultipartReader::SkipEpilogue() {
  INTRAWARP_RETURN_IF_ERROR(PassOver(rest().size()));
  return false;
}

}  // namespace intrawarp::dicomweb
