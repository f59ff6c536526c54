// SPDX-License-Identifier: Apache-2.0
// Whole small files, and numbers as text. Thread-safe functions.
#ifndef INTRAWARP_IO_FILE_H_
#define INTRAWARP_IO_FILE_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace intrawarp::io {

// NOT_FOUND, PERMISSION_DENIED or UNKNOWN by errno, beginning "file: "; RESOURCE_EXHAUSTED above `max_bytes`.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes);
// Replaces the file; a regular file that could not be written whole is removed.
absl::Status WriteSmallFile(const std::string& path, absl::string_view contents);

// The status of a failed call on a file; `errno_value` is 0 where the library did not say.
absl::Status FileError(absl::string_view what, int errno_value);
// Removes what a failed write left behind; only ever a regular file.
void RemovePartialFile(const std::string& path);

// A finite decimal number, with no regard to the locale; INVALID_ARGUMENT otherwise.
absl::StatusOr<double> ParseFinite(absl::string_view text);
// The shortest text that ParseFinite turns back into exactly `value`.
std::string FormatDouble(double value);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_FILE_H_
