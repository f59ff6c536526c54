// SPDX-License-Identifier: Apache-2.0
// The files of single instances as the spool holds them (PS3.10). Thread-safe functions.
#ifndef INTRAWARP_SERVER_PACS_INSTANCE_FILE_H_
#define INTRAWARP_SERVER_PACS_INSTANCE_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "io/dicom/dicom.h"

namespace intrawarp::server {

// An instance has no more.
inline constexpr int64_t kMaxInstanceBytes = int64_t{4} << 30;

// The part of a file that stands before the data set: preamble and meta header, of three UIDs.
std::string FileHeader(const std::string& sop_class, const std::string& instance, const std::string& transfer_syntax);

// The reader's view of a file.
struct InstanceDescription {
  // The hash of its series, as io::DicomProvenance has it; empty: unknown.
  std::string series;
  // SeriesKey::series: that hash, and a part of the hash of study and patient. Empty with an empty `series`.
  std::string group;
  // InstanceHash of the SOP instance UID in the data set; empty: it has none.
  std::string instance;
  // The images that it says its series has; -1: it does not say.
  int64_t announced = -1;
  // Whether it may be a slice of a series.
  bool is_slice = true;
  // Whether there was memory to read it; otherwise the status is RESOURCE_EXHAUSTED.
  bool has_room = true;
  // Why the reader can make nothing of it.
  absl::Status status;
};

// Describes a file whose end may be missing. A UID in it that is none is one of the reasons. At most two files are read
// at once. `reading`: memory to read one; empty: there is enough.
InstanceDescription DescribeInstance(const std::string& path, const io::DicomRoomFn& reading);

// The name of an instance in the spool: a hash of its UID.
std::string InstanceHash(const std::string& uid);

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PACS_INSTANCE_FILE_H_
