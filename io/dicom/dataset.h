// SPDX-License-Identifier: Apache-2.0
// One DICOM file as DCMTK's data set, with every bound that a hostile file calls for.
//
// The whole file is read into memory and parsed from there. The parser stops where its recursion uses more stack or
// makes more elements than kMaxParserStack and kMaxParserReads allow, and at a length beyond what is left, before
// memory is taken for it, so that nesting, counts and sizes are bounded whatever the lengths in the file say. A
// deflated data set is inflated up to a bound that its own size sets (DicomLimits): first into nothing, so that the
// size is known before there is memory for it. An allocation that fails is RESOURCE_EXHAUSTED "memory: ...".
#ifndef INTRAWARP_IO_DICOM_DATASET_H_
#define INTRAWARP_IO_DICOM_DATASET_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/dicom/dicom.h"

class DcmDataset;

namespace intrawarp::io::dicom {

// Some hundred levels of sequences; real data sets have less than ten.
inline constexpr size_t kMaxParserStack = 192 << 10;
// An element takes some five reads, and some 200 bytes.
inline constexpr int64_t kMaxParserReads = 16 << 20;

// Frees what DCMTK allocated.
struct DatasetDeleter {
  void operator()(DcmDataset* dataset) const;
};

// Thread-compatible.
struct Dataset {
  std::shared_ptr<const void> room;  // for what follows
  // Null for a file that is not DICOM.
  std::unique_ptr<DcmDataset, DatasetDeleter> data;
  // OK, or why the file could not be read to its end; `data` then holds what stood before.
  absl::Status status;
};

// NOT_FOUND and the like "file: ..." for a file that cannot be opened, RESOURCE_EXHAUSTED "file: ..." above
// limits.max_file_bytes, the errors of limits.room. Dataset::status has the errors of what it holds: NOT_FOUND "file:
// is not DICOM", DATA_LOSS "data: ..." for truncated or corrupt files, RESOURCE_EXHAUSTED "nesting: ...", UNIMPLEMENTED
// "transfer_syntax: ..." and "elements: ...".
absl::StatusOr<Dataset> ReadDataset(const std::string& path, const DicomLimits& limits);

// Whether a file begins like DICOM; false for one that cannot be read.
bool BeginsLikeDicom(const std::string& path);

}  // namespace intrawarp::io::dicom

#endif  // INTRAWARP_IO_DICOM_DATASET_H_
