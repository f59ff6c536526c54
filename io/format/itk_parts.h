// SPDX-License-Identifier: Apache-2.0
// The list of transforms that ITK's files hold, whatever their encoding, and what it composes to. For itk_transform.cc
// and itk_hdf5.cc. Thread-safe functions.
#ifndef INTRAWARP_IO_FORMAT_ITK_PARTS_H_
#define INTRAWARP_IO_FORMAT_ITK_PARTS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/format/itk_transform.h"

namespace intrawarp::io {

// One transform of a list that is read. A function gives exactly as many finite numbers as it is asked for, or fails
// before it takes memory for them; its errors begin with "Parameters: " or "FixedParameters: ".
struct ItkPart {
  std::string type;  // "AffineTransform_double_3_3"
  std::function<absl::StatusOr<std::vector<double>>(int64_t count)> parameters;
  std::function<absl::StatusOr<std::vector<double>>(int64_t count)> fixed_parameters;
  int64_t fixed_count = 0;  // how many fixed parameters there are
};

inline constexpr size_t kMaxItkParts = 1024;

absl::StatusOr<ItkTransform> ComposeItkParts(std::vector<ItkPart> parts);

// One transform of a list that is written; `vectors`, when there are some, follow `parameters`.
struct ItkPartOut {
  std::string type;
  std::vector<double> parameters;
  std::vector<float> vectors;
  std::vector<double> fixed_parameters;
};
std::vector<ItkPartOut> ItkPartsOf(const ItkTransform& transform);

// itk_hdf5.cc
absl::StatusOr<ItkTransform> ReadItkHdf5(const std::string& path, size_t max_bytes);
absl::Status WriteItkHdf5(const std::string& path, const ItkTransform& transform);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_FORMAT_ITK_PARTS_H_
