// SPDX-License-Identifier: Apache-2.0
#include "server/page/device_reads.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/status/errors.h"
#include "tests/server/page/page_parts.h"

namespace intrawarp::server {
namespace {

class DeviceReadsTest : public testing::Test {
 protected:
  void ExpectNothingIsHeld() {
    EXPECT_EQ(parts_.ledger().in_use(Resource::kPinned), 0);
    EXPECT_EQ(parts_.ledger().in_use(Resource::kWorkspace), 0);
  }
  static Transform Shift(Vec3d by) {
    AffineMap map = AffineMap::Identity();
    for (int axis = 0; axis < 3; ++axis) map.m[axis][3] = by[axis];
    return Transform(map);
  }

  PageParts parts_;
};

TEST_F(DeviceReadsTest, VoxelsComeAsTheyLieOnTheDevice) {
  // The second one takes a slab of 4 MiB and a rest.
  Geometry large;
  large.size = {128, 128, 65};
  for (const Geometry& grid : {PageParts::Grid(), large}) {
    const PreparedImage image = parts_.Image(grid);
    const auto voxels = ReadVoxels(parts_.context(), image, "ann");
    ASSERT_TRUE(voxels.ok()) << voxels.status();
    ASSERT_EQ(static_cast<int64_t>(voxels->size()), grid.voxels());
    int64_t wrong = 0;
    for (size_t i = 0; i < voxels->size(); ++i) wrong += (*voxels)[i] != static_cast<float>(i % 1000);
    EXPECT_EQ(wrong, 0);
    ExpectNothingIsHeld();
  }
}

TEST_F(DeviceReadsTest, AFieldIsThatOfTheTransformOnACoarseGrid) {
  const Geometry fixed = PageParts::Grid();
  const auto field = ReadField(parts_.context(), Shift({4, -2, 0.5}), fixed, "ann");
  ASSERT_TRUE(field.ok()) << field.status();
  EXPECT_EQ(field->grid, CoarseGrid(fixed));
  for (const Vec3d& index : {Vec3d{0, 0, 0}, Vec3d{11, 9, 7}, Vec3d{3.3, 4.7, 2}}) {
    const Vec3d point = IndexToPhysical(fixed)(index), mapped = field->Map(point);
    EXPECT_NEAR(mapped.x - point.x, 4, 2 * field->scale);
    EXPECT_NEAR(mapped.y - point.y, -2, 2 * field->scale);
    EXPECT_NEAR(mapped.z - point.z, 0.5, 2 * field->scale);
  }
  ExpectNothingIsHeld();
}

TEST_F(DeviceReadsTest, WithoutRoomThereIsAnError) {
  const PreparedImage image = parts_.Image(PageParts::Grid());
  {
    const auto others = parts_.ledger().Admit(Claim{{.pinned_bytes = PageParts::kMemory}});
    ASSERT_TRUE(others.ok());
    EXPECT_EQ(ReasonOf(ReadVoxels(parts_.context(), image, "ann").status()), v1::PINNED_MEMORY);
    EXPECT_EQ(ReasonOf(ReadField(parts_.context(), Shift({1, 0, 0}), PageParts::Grid(), "ann").status()),
              v1::PINNED_MEMORY);
    EXPECT_EQ(parts_.ledger().in_use(Resource::kWorkspace), 0);
  }
  Claim claim{{.workspace_bytes = PageParts::kMemory}};
  claim.job_class = JobClass::kBatch;
  const auto others = parts_.ledger().Admit(claim);
  ASSERT_TRUE(others.ok());
  EXPECT_EQ(ReasonOf(ReadField(parts_.context(), Shift({1, 0, 0}), PageParts::Grid(), "ann").status()),
            v1::WORKSPACE_MEMORY);
}

TEST_F(DeviceReadsTest, AnErrorOfTheDeviceIsTold) {
  const PreparedImage image = parts_.Image(PageParts::Grid());
  for (const DeviceCall call : {DeviceCall::kCopy, DeviceCall::kSynchronize}) {
    parts_.device().FailAt(1, absl::InternalError("broken"), call);
    EXPECT_EQ(ReadVoxels(parts_.context(), image, "ann").status().code(), absl::StatusCode::kInternal);
    parts_.device().FailAt(1, absl::InternalError("broken"), call);
    EXPECT_EQ(ReadField(parts_.context(), Shift({1, 0, 0}), PageParts::Grid(), "ann").status().code(),
              absl::StatusCode::kInternal);
    parts_.device().Disarm();
    ExpectNothingIsHeld();
  }
  EXPECT_TRUE(ReadVoxels(parts_.context(), image, "ann").ok());
}

TEST_F(DeviceReadsTest, ALaneThatStopsIsToldAndNobodyWaits) {
  const PreparedImage image = parts_.Image(PageParts::Grid());
  parts_.StopCopies();
  EXPECT_TRUE(absl::IsUnavailable(ReadVoxels(parts_.context(), image, "ann").status()));
  EXPECT_TRUE(absl::IsUnavailable(ReadField(parts_.context(), Shift({1, 0, 0}), PageParts::Grid(), "ann").status()));
  ExpectNothingIsHeld();
}

TEST_F(DeviceReadsTest, ADeviceThatIsLostIsNotAsked) {
  const PreparedImage image = parts_.Image(PageParts::Grid());
  parts_.device().FailAt(1, absl::UnavailableError("fell off the bus"), DeviceCall::kSynchronize);
  EXPECT_TRUE(absl::IsUnavailable(ReadVoxels(parts_.context(), image, "ann").status()));
  const int64_t copies = parts_.device().calls(DeviceCall::kCopy);
  EXPECT_EQ(ReasonOf(ReadVoxels(parts_.context(), image, "ann").status()), v1::DEVICE_LOST);
  EXPECT_EQ(parts_.device().calls(DeviceCall::kCopy), copies);
}

}  // namespace
}  // namespace intrawarp::server
