// SPDX-License-Identifier: Apache-2.0
// ITK transform files as HDF5: what is read has as many vectors as its grid.
#include "io/format/itk_transform.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using intrawarp::io::ItkTransform;
  const intrawarp::fuzz::NamedFile file(data, size, ".h5");
  const auto transform = intrawarp::io::ReadItkTransform(file.path(), size_t{16} << 20);
  intrawarp::fuzz::RequireRefusal(transform.status());
  if (!transform.ok()) return 0;
  const bool is_affine = transform->kind == ItkTransform::Kind::kAffine;
  const int64_t vectors = is_affine ? 0 : 3 * transform->grid.voxels();
  intrawarp::fuzz::Require(static_cast<int64_t>(transform->vectors.size()) == vectors, "three components a node");
  return 0;
}
