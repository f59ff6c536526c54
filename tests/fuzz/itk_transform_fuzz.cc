// SPDX-License-Identifier: Apache-2.0
// ITK transform files as text: what is read has as many vectors as its grid, and is written and read again as the same.
#include "io/format/itk_transform.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using intrawarp::fuzz::Require;
  using intrawarp::io::ItkTransform;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto transform = intrawarp::io::ParseItkTransform(text);
  intrawarp::fuzz::RequireRefusal(transform.status());
  if (!transform.ok()) return 0;
  const bool is_affine = transform->kind == ItkTransform::Kind::kAffine;
  const int64_t vectors = is_affine ? 0 : 3 * transform->grid.voxels();
  Require(static_cast<int64_t>(transform->vectors.size()) == vectors, "three components a node");
  const auto again = intrawarp::io::ParseItkTransform(intrawarp::io::FormatItkTransform(*transform));
  Require(again.ok(), "what is written can be read");
  Require(again->kind == transform->kind && again->vectors.size() >= transform->vectors.size(), "the same transform");
  return 0;
}
