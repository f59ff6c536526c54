// SPDX-License-Identifier: Apache-2.0
// NIfTI files as volumes, fields and velocities: what is read has a valid geometry and as many bytes as that says.
#include "engine/geometry/geometry.h"
#include "io/format/nifti.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using intrawarp::Geometry;
using intrawarp::fuzz::Require;
using intrawarp::fuzz::RequireRefusal;

constexpr int64_t kMaxBytes = int64_t{16} << 20;

void RequireGeometry(const Geometry& geometry) {
  Require(intrawarp::ValidateGeometry(geometry).ok(), "a valid geometry");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const intrawarp::fuzz::MemoryFile file(data, size);
  const std::string path = file.path();
  const auto volume = intrawarp::io::ReadNifti(path, kMaxBytes);
  RequireRefusal(volume.status());
  if (volume.ok()) {
    RequireGeometry(volume->geometry);
    Require(static_cast<int64_t>(volume->pixels.size()) ==
                volume->geometry.voxels() * intrawarp::BytesPerPixel(volume->pixel_type),
            "as many pixels as the geometry says");
    Require(static_cast<int64_t>(volume->pixels.size()) <= kMaxBytes, "no more than allowed");
  }
  const auto field = intrawarp::io::ReadField(path, kMaxBytes);
  RequireRefusal(field.status());
  if (field.ok()) {
    RequireGeometry(field->geometry);
    Require(static_cast<int64_t>(field->displacement.size()) == 3 * field->geometry.voxels(), "three components");
  }
  RequireRefusal(intrawarp::io::HoldsVelocity(path).status());
  const auto velocity = intrawarp::io::ReadVelocity(path, kMaxBytes);
  RequireRefusal(velocity.status());
  if (velocity.ok()) {
    RequireGeometry(velocity->geometry);
    Require(static_cast<int64_t>(velocity->velocity.size()) == 3 * velocity->geometry.voxels(), "three components");
  }
  return 0;
}
