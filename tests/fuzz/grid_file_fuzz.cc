// SPDX-License-Identifier: Apache-2.0
// NRRD and MetaImage files as volumes and fields; the first byte chooses the format.
#include "engine/geometry/geometry.h"
#include "io/format/grid_files.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using intrawarp::fuzz::Require;
  constexpr const char* kSuffixes[] = {".nrrd", ".nhdr", ".mha", ".mhd"};
  constexpr int64_t kMaxBytes = int64_t{16} << 20;
  if (size == 0) return 0;
  const intrawarp::fuzz::NamedFile file(data + 1, size - 1, kSuffixes[data[0] % 4]);
  const auto volume = intrawarp::io::ReadVolumeFile(file.path(), kMaxBytes);
  intrawarp::fuzz::RequireRefusal(volume.status());
  if (volume.ok()) {
    Require(intrawarp::ValidateGeometry(volume->geometry).ok(), "a valid geometry");
    Require(static_cast<int64_t>(volume->pixels.size()) ==
                volume->geometry.voxels() * intrawarp::BytesPerPixel(volume->pixel_type),
            "as many pixels as the geometry says");
  }
  const auto field = intrawarp::io::ReadFieldFile(file.path(), kMaxBytes);
  intrawarp::fuzz::RequireRefusal(field.status());
  if (field.ok()) {
    Require(intrawarp::ValidateGeometry(field->geometry).ok(), "a valid geometry");
    Require(static_cast<int64_t>(field->displacement.size()) == 3 * field->geometry.voxels(), "three components");
  }
  return 0;
}
