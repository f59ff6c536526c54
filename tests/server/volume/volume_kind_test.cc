// SPDX-License-Identifier: Apache-2.0
// Volumes that the server reads itself follow the rules of uploads: the same values as a header and as they are.
#include "server/volume/volume_kind.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "engine/device/device.h"
#include "server/context/limits.h"
#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

struct Volume {
  ObjectSpec spec;
  VolumeContent content;
};

class VolumeKindTest : public testing::Test {
 protected:
  static Volume Stored() {
    Volume volume;
    volume.content.geometry.size = {6, 5, 4};
    volume.content.pixel_type = PixelType::kInt16;
    volume.content.rescale = {2, -1024};
    volume.content.provenance.set_source(v1::PROVENANCE_SOURCE_STORAGE);
    volume.content.provenance.set_modality("CT");
    volume.content.provenance.set_series_hash(std::string(32, 's'));
    volume.spec.id = "ct-1";
    volume.spec.total_bytes = 240;
    volume.spec.content_digest = std::string(32, 'd');
    return volume;
  }

  auto AsItIs(const Volume& volume) { return NewVolumeObject(volume.spec, volume.content, limits_, *device_); }
  auto FromHeader(const Volume& volume) {
    return ParseVolumeUpload(HeaderOf(volume.spec, volume.content), limits_, *device_);
  }
  void ExpectRefused(const std::string& field, const std::function<void(Volume&)>& change) {
    Volume volume = Stored();
    change(volume);
    const absl::Status status = AsItIs(volume).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_EQ(FieldOf(status), field);
    EXPECT_EQ(status, FromHeader(volume).status()) << field;
  }

  ServerLimits limits_;
  const std::unique_ptr<Device> device_ = std::move(AllDevices().front());
};

TEST_F(VolumeKindTest, ItsHeaderMakesTheSameVolume) {
  for (const bool is_provisional : {false, true}) {
    Volume volume = Stored();
    volume.content.is_provisional = is_provisional;
    const auto as_it_is = AsItIs(volume), from_header = FromHeader(volume);
    ASSERT_TRUE(as_it_is.ok()) << as_it_is.status();
    ASSERT_TRUE(from_header.ok()) << from_header.status();
    EXPECT_GT((*as_it_is)->spec().resident_bytes, 0);
    ObjectSpec spec = (*from_header)->spec();
    spec.upload_id = "";
    EXPECT_EQ((*as_it_is)->spec(), spec);
    for (const auto& object : {&*as_it_is, &*from_header}) {
      const auto stored = (*object)->Take(Grant(), "");
      ASSERT_TRUE(stored.ok()) << stored.status();
      EXPECT_EQ((*stored)->is_provisional, is_provisional);
      EXPECT_EQ((*stored)->pixel_type, PixelType::kInt16);
      EXPECT_EQ((*stored)->content_digest, volume.spec.content_digest);
      EXPECT_EQ((*stored)->provenance.SerializeAsString(), volume.content.provenance.SerializeAsString());
      EXPECT_TRUE((*stored)->evictable);
    }
  }
}

TEST_F(VolumeKindTest, WhateverAnUploadMayNotBeItMayNotBe) {
  ExpectRefused("volume.geometry.size", [](Volume& it) { it.content.geometry.size.y = 0; });
  ExpectRefused("volume.geometry.spacing", [](Volume& it) { it.content.geometry.spacing.z = 0; });
  ExpectRefused("volume.geometry.direction", [](Volume& it) { it.content.geometry.direction[0][0] = 2; });
  ExpectRefused("volume.provenance.source", [](Volume& it) { it.content.provenance.clear_source(); });
  ExpectRefused("volume.provenance.modality", [](Volume& it) { it.content.provenance.set_modality("DOE^JANE"); });
  ExpectRefused("volume.provenance.series_hash", [](Volume& it) { it.content.provenance.set_series_hash("1.2"); });
  ExpectRefused("volume.rescale.slope", [](Volume& it) { it.content.rescale.slope = 0; });
  ExpectRefused("volume.rescale.intercept",
                [](Volume& it) { it.content.rescale.intercept = std::numeric_limits<double>::infinity(); });
  ExpectRefused("id", [](Volume& it) { it.spec.id = std::string(64, 'a'); });
  ExpectRefused("total_bytes", [](Volume& it) { it.spec.total_bytes = 239; });
  ExpectRefused("sha256", [](Volume& it) { it.spec.content_digest = "short"; });
  limits_.max_volume_bytes = 239;
  ExpectRefused("total_bytes", [](Volume&) {});
}

}  // namespace
}  // namespace intrawarp::server
