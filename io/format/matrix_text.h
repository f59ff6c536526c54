// SPDX-License-Identifier: Apache-2.0
// An affine map as text: four lines of four numbers, the last line 0 0 0 1. For transforms: fixed -> moving, LPS mm.
//
// Numbers are separated by spaces, tabs or commas; empty lines and lines that begin with # are skipped. Numbers are
// written so that they read back exactly. Thread-safe functions.
#ifndef INTRAWARP_IO_FORMAT_MATRIX_TEXT_H_
#define INTRAWARP_IO_FORMAT_MATRIX_TEXT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/geometry/vec.h"

namespace intrawarp::io {

// INVALID_ARGUMENT, beginning "line N: " or "matrix: ", for a word that is not a finite number, for more or fewer than
// 4x4 numbers, for another last row, and for a singular linear part.
absl::StatusOr<AffineMap> ParseMatrix(absl::string_view text);
std::string FormatMatrix(const AffineMap& map);

absl::StatusOr<AffineMap> ReadMatrix(const std::string& path);
absl::Status WriteMatrix(const std::string& path, const AffineMap& map);

}  // namespace intrawarp::io

#endif  // INTRAWARP_IO_FORMAT_MATRIX_TEXT_H_
