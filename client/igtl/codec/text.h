// SPDX-License-Identifier: Apache-2.0
// The contents of STRING, COMMAND (and RTS_COMMAND, its answer) and STATUS. Texts are passed on as bytes. Plain values;
// thread-safe functions.
#ifndef INTRAWARP_CLIENT_IGTL_CODEC_TEXT_H_
#define INTRAWARP_CLIENT_IGTL_CODEC_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace intrawarp::igtl {

// A COMMAND's name has 128 bytes, and 32 in the first releases of protocol 3. An answer keeps the form of its command.
inline constexpr size_t kCommandNameBytes = 128;
inline constexpr size_t kOldCommandNameBytes = 32;

struct CommandContent {
  uint32_t id = 0;
  std::string name;
  std::string text;
  size_t name_bytes = kCommandNameBytes;
};

enum class StatusCode : uint16_t {
  kOk = 1,
  kUnknownError = 2,
  kTimeout = 7,
  kConfigurationError = 10,
  kUnknownInstruction = 12,
  kNotReady = 13,
};

struct StatusContent {
  StatusCode code = StatusCode::kOk;
  int64_t subcode = 0;
  std::string error_name;
  std::string message;
};

// INVALID_ARGUMENT, naming the field, where a length contradicts the number of bytes.
absl::StatusOr<std::string> ParseString(absl::string_view content);
absl::StatusOr<CommandContent> ParseCommand(absl::string_view content);
absl::StatusOr<StatusContent> ParseStatus(absl::string_view content);

// At most 65535 bytes of text.
std::string PackString(absl::string_view text);
std::string PackCommand(const CommandContent& command);
std::string PackStatus(const StatusContent& status);

}  // namespace intrawarp::igtl

#endif  // INTRAWARP_CLIENT_IGTL_CODEC_TEXT_H_
