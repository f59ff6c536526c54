// SPDX-License-Identifier: Apache-2.0
// ITK transform files: what is read has a valid grid, and is written and read again as the same.
#include "io/itk_transform.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using intrawarp::fuzz::Require;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto file = intrawarp::io::ParseItkTransform(text);
  intrawarp::fuzz::RequireRefusal(file.status());
  if (!file.ok()) return 0;
  Require(static_cast<int64_t>(file->coefficients.size()) == 3 * file->grid.voxels(), "three coefficients a point");
  const auto again = intrawarp::io::ParseItkTransform(intrawarp::io::FormatItkTransform(*file));
  Require(again.ok(), "what is written can be read");
  Require(again->coefficients == file->coefficients, "the same coefficients");
  return 0;
}
