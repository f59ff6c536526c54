// SPDX-License-Identifier: Apache-2.0
#include "server/volume/volume_messages.h"

#include <chrono>
#include <memory>
#include <vector>

#include "server/store/residency.h"
#include "tests/engine/device_test.h"
#include "wire/convert.h"

namespace intrawarp::server {
namespace {

using std::chrono::seconds;
using std::chrono::system_clock;
using testing::ElementsAre;

class VolumeMessagesTest : public DeviceTest {
 protected:
  std::shared_ptr<StoredVolume> MakeVolume() {
    Geometry geometry;
    geometry.size = {4, 3, 2};
    std::vector<float> voxels(24, 1);
    voxels[3] = -5;
    voxels[20] = 9;
    auto volume = std::make_shared<StoredVolume>();
    volume->id = "a";
    volume->owner = "ann";
    volume->pixel_type = PixelType::kInt16;
    volume->digest = "all that tells it from others";
    volume->content_digest = "bytes";
    volume->create_time = system_clock::time_point(seconds(100));
    volume->image = *PreparedImage::Prepare(ctx(), voxels.data(), PixelType::kFloat32, 1, 0, geometry);
    return volume;
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(VolumeMessagesTest);

TEST_P(VolumeMessagesTest, EachFieldGoesWhereItBelongs) {
  const auto volume = MakeVolume();
  const v1::Volume to = VolumeToProto(*volume);
  EXPECT_EQ(to.name(), "volumes/a");
  EXPECT_EQ(to.owner(), "ann");
  EXPECT_THAT(to.geometry().size(), ElementsAre(4, 3, 2));
  EXPECT_EQ(to.pixel_type(), v1::PIXEL_TYPE_INT16) << "as it was uploaded";
  EXPECT_EQ(to.digest(), "bytes") << "clients compare it with what they sent";
  EXPECT_EQ(to.resident_bytes(), ChargedBytes(PreparedImage::Bytes(volume->image.geometry())));
  EXPECT_EQ(to.create_time().seconds(), 100);
  EXPECT_EQ(to.minimum(), -5);
  EXPECT_EQ(to.maximum(), 9);
  EXPECT_FALSE(to.pinned() || to.provisional() || to.has_expire_time() || to.has_provenance());
}

TEST_P(VolumeMessagesTest, WhatIsNotTheRuleIsTold) {
  const auto volume = MakeVolume();
  volume->evictable = false;
  volume->is_provisional = true;
  volume->expiry = Expiry{system_clock::time_point(seconds(160)), {}};
  volume->provenance.set_source(v1::PROVENANCE_SOURCE_STORAGE);
  volume->provenance.set_modality("CT");
  const v1::Volume to = VolumeToProto(*volume);
  EXPECT_TRUE(to.pinned() && to.provisional());
  EXPECT_EQ(to.expire_time().seconds(), 160);
  EXPECT_EQ(to.provenance().modality(), "CT");
}

TEST_P(VolumeMessagesTest, TheResidencyIsThatOfNow) {
  const auto volume = MakeVolume();
  EXPECT_EQ(VolumeToProto(*volume).residency(), v1::RESIDENCY_RESIDENT) << "it cannot leave";
  volume->residency = std::make_shared<Residency>(DurableContent());
  EXPECT_EQ(VolumeToProto(*volume).residency(), v1::RESIDENCY_RESIDENT);
  volume->residency->SetSpooled();
  EXPECT_EQ(VolumeToProto(*volume).residency(), v1::RESIDENCY_SPOOLED);
  bool begin = false;
  EXPECT_EQ(volume->residency->Enter([](const absl::StatusOr<Residency::Pointer>&) {}, &begin), nullptr);
  EXPECT_TRUE(begin);
  EXPECT_EQ(VolumeToProto(*volume).residency(), v1::RESIDENCY_LOADING);
  volume->residency->Leave(absl::UnavailableError(""));
  EXPECT_EQ(VolumeToProto(*volume).residency(), v1::RESIDENCY_SPOOLED);
}

TEST(FailedVolume, HasANameAndAnOwnerAndNothingElse) {
  const v1::Volume to = FailedVolume("a", "ann");
  EXPECT_EQ(to.name(), "volumes/a");
  EXPECT_EQ(to.owner(), "ann");
  EXPECT_EQ(to.residency(), v1::RESIDENCY_FAILED);
  EXPECT_FALSE(to.has_geometry() || to.has_create_time());
}

}  // namespace
}  // namespace intrawarp::server
