// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/codec/text.h"

#include "client/igtl/codec/bytes.h"
#include "engine/base/field_error.h"

namespace intrawarp::igtl {
namespace {

constexpr uint16_t kAscii = 3;  // IANA's MIBenum
constexpr size_t kErrorNameBytes = 20;

absl::Status Invalid(absl::string_view field, absl::string_view what) {
  return FieldError(absl::StatusCode::kInvalidArgument, field, what);
}

}  // namespace

absl::StatusOr<std::string> ParseString(absl::string_view content) {
  ByteReader in(content);
  (void)in.Uint16();
  const size_t length = in.Uint16();
  const absl::string_view text = in.Raw(length);
  if (!in.ok()) return Invalid("string.length", "is beyond the message");
  return std::string(text);
}

absl::StatusOr<CommandContent> ParseCommand(absl::string_view content) {
  for (const size_t name_bytes : {kCommandNameBytes, kOldCommandNameBytes}) {
    ByteReader in(content);
    CommandContent command;
    command.name_bytes = name_bytes;
    command.id = in.Uint32();
    command.name = in.Text(name_bytes);
    (void)in.Uint16();
    const size_t length = in.Uint32();
    if (!in.ok() || in.remaining() != length) continue;
    command.text = std::string(in.Raw(length));
    return command;
  }
  return Invalid("command.length", "differs from the rest of the message");
}

absl::StatusOr<StatusContent> ParseStatus(absl::string_view content) {
  ByteReader in(content);
  StatusContent status;
  status.code = static_cast<StatusCode>(in.Uint16());
  status.subcode = static_cast<int64_t>(in.Uint64());
  status.error_name = in.Text(kErrorNameBytes);
  if (!in.ok()) return Invalid("status", "has fewer than 30 bytes");
  status.message = in.Text(in.remaining());
  return status;
}

std::string PackString(absl::string_view text) {
  text = text.substr(0, UINT16_MAX);
  ByteWriter out;
  out.Uint16(kAscii);
  out.Uint16(static_cast<uint16_t>(text.size()));
  out.Raw(text);
  return out.Take();
}

std::string PackCommand(const CommandContent& command) {
  ByteWriter out;
  out.Uint32(command.id);
  out.Text(command.name, command.name_bytes);
  out.Uint16(kAscii);
  out.Uint32(static_cast<uint32_t>(command.text.size()));
  out.Raw(command.text);
  return out.Take();
}

std::string PackStatus(const StatusContent& status) {
  ByteWriter out;
  out.Uint16(static_cast<uint16_t>(status.code));
  out.Uint64(static_cast<uint64_t>(status.subcode));
  out.Text(status.error_name, kErrorNameBytes);
  out.Raw(status.message);
  out.Uint8(0);
  return out.Take();
}

}  // namespace intrawarp::igtl
