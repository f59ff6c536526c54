// SPDX-License-Identifier: Apache-2.0
// Points as CSV, and affine matrices as text: what is read is finite, and is written and read again as the same.
#include <cmath>
#include <cstring>

#include "io/format/matrix_text.h"
#include "io/format/points.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using intrawarp::fuzz::Require;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto points = intrawarp::io::ParsePoints(text);
  intrawarp::fuzz::RequireRefusal(points.status());
  if (points.ok()) {
    for (const auto& p : *points) Require(std::isfinite(p.x + 0 * p.y + 0 * p.z), "finite coordinates");
    const auto again = intrawarp::io::ParsePoints(intrawarp::io::FormatPoints(*points));
    Require(points->empty() || (again.ok() && again->size() == points->size()), "as many points again");
  }
  const auto matrix = intrawarp::io::ParseMatrix(text);
  intrawarp::fuzz::RequireRefusal(matrix.status());
  if (matrix.ok()) {
    for (const auto& row : matrix->m) {
      for (const double value : row) Require(std::isfinite(value), "finite entries");
    }
  }
  return 0;
}
