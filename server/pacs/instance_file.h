// SPDX-License-Identifier: Apache-2.0
// The files of single instances as the spool holds them (PS3.10). Thread-safe functions.
#ifndef INTRAWARP_SERVER_PACS_INSTANCE_FILE_H_
#define INTRAWARP_SERVER_PACS_INSTANCE_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace intrawarp::server {

// An instance has no more.
inline constexpr int64_t kMaxInstanceBytes = int64_t{4} << 30;

// The part of a file that stands before the data set: preamble and meta header, of three UIDs.
std::string FileHeader(const std::string& sop_class, const std::string& instance, const std::string& transfer_syntax);

// The hash of the series of a whole file, as io::DicomProvenance has it; INVALID_ARGUMENT and other errors of the
// reader when it can make nothing of the file. At most two files are read at once.
absl::StatusOr<std::string> SeriesOfFile(const std::string& path);

// The name of an instance in the spool: a hash of its UID.
std::string InstanceHash(const std::string& uid);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PACS_INSTANCE_FILE_H_
