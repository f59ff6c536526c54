// SPDX-License-Identifier: Apache-2.0
// The configuration file of a program: a flag of the command line on each line, without its dashes.
//
//   # a comment
//   listen = 127.0.0.1:50051
//   reflection = true
//
// White space around a key and around a value does not count; a value runs to the end of its line, and has neither
// quotes nor escapes. A switch takes true or false. Keys mean what the flags of their names mean.
//
// Thread safety: thread-safe functions, plain values.
#ifndef INTRAWARP_IO_FILE_CONFIG_FILE_H_
#define INTRAWARP_IO_FILE_CONFIG_FILE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace intrawarp::io {

struct ConfigEntry {
  // From 1.
  int line = 0;
  std::string key;
  std::string value;
};

// In the order of the file. INVALID_ARGUMENT, naming the line, for a line that is not an entry, a key that does
// not look like a flag's name, a repeated key, and bytes outside printable ASCII; a message never holds a value.
absl::StatusOr<std::vector<ConfigEntry>> ParseConfig(absl::string_view text);

// A file of at most 64 KiB. Errors: ReadSmallFile's and ParseConfig's, with the path.
absl::StatusOr<std::vector<ConfigEntry>> ReadConfigFile(const std::string& path);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_FILE_CONFIG_FILE_H_
