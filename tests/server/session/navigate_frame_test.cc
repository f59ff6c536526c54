// SPDX-License-Identifier: Apache-2.0
// A frame from its header to its job, without a stream. frame_pipeline_test.cc registers frames.
#include "server/session/navigate_frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "server/context/limits.h"
#include "server/monitor/registry.h"
#include "server/registration/registration_metrics.h"
#include "server/status/errors.h"
#include "tests/server/partial_context.h"
#include "wire/convert.h"

namespace intrawarp::server {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr Int3 kSize = {10, 9, 8};
constexpr int64_t kVoxels = 10 * 9 * 8;

Geometry Grid(Int3 size) {
  Geometry grid;
  grid.size = size;
  return grid;
}

v1::FrameHeader Header() {
  v1::FrameHeader header;
  header.set_frame_number(7);
  *header.mutable_geometry() = GeometryToProto(Grid(kSize));
  header.set_pixel_type(v1::PIXEL_TYPE_INT16);
  header.set_total_bytes(2 * kVoxels);
  return header;
}

void AddLandmark(v1::FrameHeader& header, double x) {
  v1::Landmark& landmark = *header.mutable_landmarks()->add_landmarks();
  for (int axis = 0; axis < 3; ++axis) {
    landmark.add_fixed(axis == 0 ? x : 0);
    landmark.add_moving(1);
  }
}

class NavigateFrameTest : public testing::Test {
 protected:
  NavigateFrameTest() {
    setup_.expected.geometry = Grid(kSize);
    setup_.expected.bytes = 2 * kVoxels;
  }
  std::unique_ptr<NavigateFrame> NewFrame() {
    auto frame = std::make_unique<NavigateFrame>(context_, NavigateFrame::Time());
    frame->record.Repeated();  // the metrics are not looked at here
    return frame;
  }
  absl::Status Parse(const v1::FrameHeader& header, NavigateFrame& frame) {
    return ParseFrameHeader(context_, setup_, header, frame);
  }
  // The frame of a header with this change.
  std::unique_ptr<NavigateFrame> With(const std::function<void(v1::FrameHeader&)>& change) {
    v1::FrameHeader header = Header();
    change(header);
    std::unique_ptr<NavigateFrame> frame = NewFrame();
    const absl::Status status = Parse(header, *frame);
    EXPECT_TRUE(status.ok()) << status;
    return frame;
  }
  void ExpectRefused(const std::string& field, const std::function<void(v1::FrameHeader&)>& change) {
    v1::FrameHeader header = Header();
    change(header);
    const absl::Status status = Parse(header, *NewFrame());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_EQ(FieldOf(status), field) << status;
  }
  static void Enlarge(v1::FrameHeader& header) {
    header.mutable_geometry()->set_size(0, 11);
    header.set_total_bytes(2 * 11 * 9 * 8);
  }

  // The resident image in the setup lies on it.
  const std::unique_ptr<Device> device_ = *OpenDevice("cpu");
  ServerLimits limits_;
  VolumeStore volumes_;
  Registry registry_;
  const RegistrationMetrics metrics_{registry_};
  PartialContext parts_;
  ServerContext context_ = [this] {
    parts_.limits = &limits_;
    parts_.volumes = &volumes_;
    parts_.registration = &metrics_;
    return parts_.Make();
  }();
  SessionSetup setup_;
};

TEST_F(NavigateFrameTest, AHeaderAnnouncesTheFrame) {
  const auto frame = With([](v1::FrameHeader& header) {
    header.mutable_rescale()->set_slope(2);
    header.mutable_rescale()->set_intercept(-1024);
  });
  EXPECT_EQ(frame->geometry, Grid(kSize));
  EXPECT_EQ(frame->pixel_type, PixelType::kInt16);
  EXPECT_EQ(frame->rescale, (Rescale{2, -1024}));
  EXPECT_EQ(frame->total_bytes, 2 * kVoxels);
  EXPECT_FALSE(frame->deadline || frame->landmarks || frame->masks);
  EXPECT_EQ(With([](v1::FrameHeader&) {})->rescale, Rescale());
}

TEST_F(NavigateFrameTest, AnErrorNamesTheFieldWithinTheFrame) {
  ExpectRefused("frame.geometry.size", [](v1::FrameHeader& header) { header.clear_geometry(); });
  ExpectRefused("frame.geometry.spacing",
                [](v1::FrameHeader& header) { header.mutable_geometry()->set_spacing(0, 0); });
  ExpectRefused("frame.pixel_type", [](v1::FrameHeader& header) { header.clear_pixel_type(); });
  ExpectRefused("frame.rescale.slope", [](v1::FrameHeader& header) { header.mutable_rescale()->set_slope(0); });
  ExpectRefused("frame.total_bytes", [](v1::FrameHeader& header) { header.set_total_bytes(2 * kVoxels - 1); });
  ExpectRefused("frame.total_bytes", [](v1::FrameHeader& header) { header.set_total_bytes(-1); });
  ExpectRefused("frame.deadline", [](v1::FrameHeader& header) { header.mutable_deadline(); });
  ExpectRefused("frame.deadline", [](v1::FrameHeader& header) { header.mutable_deadline()->set_seconds(86401); });
  ExpectRefused("frame.landmarks.landmarks[1].fixed", [](v1::FrameHeader& header) {
    AddLandmark(header, 0);
    header.mutable_landmarks()->add_landmarks()->add_fixed(1);
  });
  ExpectRefused("frame.landmarks.landmarks[0]",
                [](v1::FrameHeader& header) { AddLandmark(header, std::numeric_limits<double>::quiet_NaN()); });
}

TEST_F(NavigateFrameTest, AFrameIsNoLargerThanAVolume) {
  limits_.max_volume_bytes = 2 * kVoxels;
  (void)With([](v1::FrameHeader&) {});
  limits_.max_volume_bytes -= 1;
  ExpectRefused("frame.total_bytes", [](v1::FrameHeader&) {});
}

TEST_F(NavigateFrameTest, AGridThatWasPromisedIsTheLimit) {
  EXPECT_EQ(With(Enlarge)->geometry.size.x, 11) << "nothing was promised";
  setup_.expected.is_promised = true;
  (void)With([](v1::FrameHeader&) {});
  ExpectRefused("frame.geometry", Enlarge);
  ExpectRefused("frame.pixel_type", [](v1::FrameHeader& header) {
    header.set_pixel_type(v1::PIXEL_TYPE_FLOAT32);
    header.set_total_bytes(4 * kVoxels);
  });
  // The same memory in another shape.
  EXPECT_EQ(With([](v1::FrameHeader& header) {
              header.mutable_geometry()->set_size(0, 8);
              header.mutable_geometry()->set_size(2, 10);
            })->geometry.size.z,
            10);
  EXPECT_EQ(With([](v1::FrameHeader& header) {
              header.set_pixel_type(v1::PIXEL_TYPE_UINT8);
              header.set_total_bytes(kVoxels);
            })->total_bytes,
            kVoxels);
}

TEST_F(NavigateFrameTest, ItsOwnDeadlineGoesBeforeTheSessions) {
  const auto own = [](v1::FrameHeader& header) { header.mutable_deadline()->set_nanos(5'000'000); };
  EXPECT_FALSE(With([](v1::FrameHeader&) {})->deadline);
  EXPECT_EQ(With(own)->deadline, milliseconds(5));
  setup_.frame_deadline = milliseconds(80);
  EXPECT_EQ(With([](v1::FrameHeader&) {})->deadline, milliseconds(80));
  EXPECT_EQ(With(own)->deadline, milliseconds(5));
  EXPECT_EQ(With([](v1::FrameHeader& header) { header.mutable_deadline()->set_seconds(86400); })->deadline, hours(24));
}

TEST_F(NavigateFrameTest, AnAnswerIsLateAfterTheDeadlineOrElseTheBudget) {
  const auto frame = NewFrame();
  EXPECT_EQ(LimitOf(*frame, setup_), std::nullopt);
  setup_.plan.budget = milliseconds(70);
  EXPECT_EQ(LimitOf(*frame, setup_), nanoseconds(milliseconds(70)));
  frame->deadline = milliseconds(90);
  EXPECT_EQ(LimitOf(*frame, setup_), nanoseconds(milliseconds(90)));
}

TEST_F(NavigateFrameTest, AnEmptyListOfLandmarksIsNotNone) {
  const auto none = With([](v1::FrameHeader& header) { header.mutable_landmarks(); });
  ASSERT_TRUE(none->landmarks.has_value()) << "it takes the config's away";
  EXPECT_TRUE(none->landmarks->empty());
  const auto two = With([](v1::FrameHeader& header) {
    AddLandmark(header, 3);
    AddLandmark(header, 4);
  });
  ASSERT_TRUE(two->landmarks && two->landmarks->size() == 2);
  EXPECT_EQ((*two->landmarks)[1].fixed.x, 4);
}

class FrameMasksTest : public NavigateFrameTest {
 protected:
  FrameMasksTest() {
    setup_.owner = "ann";
    setup_.frame_masks = true;
  }
  // A volume in the store; only its grid is looked at.
  std::shared_ptr<const StoredVolume> Volume(const std::string& id, const std::string& owner, Int3 size = kSize) {
    auto volume = std::make_shared<StoredVolume>();
    volume->id = id;
    volume->owner = owner;
    OwnedContext owned = *OwnedContext::Create(*device_, size_t{8} << 20);
    const std::vector<float> voxels(static_cast<size_t>(Grid(size).voxels()), 1);
    volume->image = *PreparedImage::Prepare(owned.context(), voxels.data(), PixelType::kFloat32, 1, 0, Grid(size));
    EXPECT_TRUE(volumes_.Insert(volume).ok());
    return volume;
  }
  static std::function<void(v1::FrameHeader&)> Names(const std::string& mask, const std::string& weight) {
    return [=](v1::FrameHeader& header) {
      header.set_mask(mask);
      header.set_weight(weight);
    };
  }
  absl::Status StatusOf(const std::string& mask, const std::string& weight) {
    v1::FrameHeader header = Header();
    Names(mask, weight)(header);
    return Parse(header, *NewFrame());
  }
  void ExpectNotFound(const std::string& mask, const std::string& weight, const std::string& resource) {
    const absl::Status status = StatusOf(mask, weight);
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(resource));
  }
};

TEST_F(FrameMasksTest, AFrameHoldsTheVolumesThatItNames) {
  const auto mask = Volume("mask", "ann"), weight = Volume("weight", "ann");
  EXPECT_EQ(With(Names("", ""))->masks, nullptr);
  const auto masked = With(Names("volumes/mask", ""));
  ASSERT_NE(masked->masks, nullptr);
  EXPECT_EQ(masked->masks->mask, mask);
  EXPECT_EQ(masked->masks->weight, nullptr);
  const auto both = With(Names("volumes/mask", "volumes/weight"));
  EXPECT_EQ(both->masks->mask, mask);
  EXPECT_EQ(both->masks->weight, weight);
  ASSERT_TRUE(volumes_.Erase("weight", Identity{"ann", Role::kFrame}).ok());
  EXPECT_EQ(both->masks->weight->id, "weight") << "deleted, and held";
  ExpectNotFound("volumes/mask", "volumes/weight", "volumes/weight");
}

TEST_F(FrameMasksTest, AMaskTakesASessionThatExpectsOne) {
  Volume("mask", "ann");
  setup_.frame_masks = false;
  EXPECT_EQ(With(Names("", ""))->masks, nullptr);
  ExpectRefused("frame.mask", Names("volumes/mask", ""));
  ExpectRefused("frame.weight", Names("", "volumes/mask"));
}

TEST_F(FrameMasksTest, AMaskLiesOnTheGridOfItsFrame) {
  Volume("mask", "ann");
  Volume("other", "ann", {10, 9, 7});
  ExpectRefused("frame.mask", Names("volumes/other", ""));
  ExpectRefused("frame.weight", Names("volumes/mask", "volumes/other"));
  ExpectRefused("frame.mask", [](v1::FrameHeader& header) {
    Names("volumes/mask", "")(header);
    header.mutable_geometry()->set_origin(1, 0.5);
  });
  ExpectRefused("frame.weight", Names("volumes/mask", "mask"));
}

TEST_F(FrameMasksTest, AVolumeOfAnotherOwnerIsNoMask) {
  const auto mask = Volume("mask", "bob");
  ExpectNotFound("volumes/mask", "", "volumes/mask");
  ExpectNotFound("", "volumes/mask", "volumes/mask");
  ExpectNotFound("volumes/nothing", "", "volumes/nothing");
  setup_.owner = "bob";
  EXPECT_EQ(With(Names("volumes/mask", ""))->masks->mask, mask);
}

class FrameWorkspaceTest : public NavigateFrameTest {
 protected:
  FrameWorkspaceTest() {
    auto resident = std::make_shared<StoredVolume>();
    OwnedContext owned = *OwnedContext::Create(*device_, size_t{8} << 20);
    const std::vector<float> voxels(kVoxels, 1);
    resident->image = *PreparedImage::Prepare(owned.context(), voxels.data(), PixelType::kFloat32, 1, 0, Grid(kSize));
    setup_.resident = std::move(resident);
    setup_.plan.stages = AutomaticStages();
    setup_.plan.automatic = true;
    setup_.expected.pixel_type = PixelType::kInt16;
  }
};

TEST_F(FrameWorkspaceTest, AFrameThatFitsTakesNothingBeyondItsSession) {
  EXPECT_GT(SessionWorkspaceBytes(*device_, setup_), FrameJobBytes(*device_, *With([](v1::FrameHeader&) {})));
  EXPECT_EQ(ExtraWorkspaceBytes(*device_, setup_, *With([](v1::FrameHeader&) {})), 0);
  const auto smaller = With([](v1::FrameHeader& header) {
    header.mutable_geometry()->set_size(0, 9);
    header.set_total_bytes(2 * 9 * 9 * 8);
  });
  EXPECT_EQ(ExtraWorkspaceBytes(*device_, setup_, *smaller), 0);
}

TEST_F(FrameWorkspaceTest, ALargerFrameTakesTheWorkspaceOfItsSize) {
  const auto larger = With([](v1::FrameHeader& header) {
    *header.mutable_geometry() = GeometryToProto(Grid({20, 18, 16}));
    header.set_total_bytes(2 * 8 * kVoxels);
  });
  const int64_t extra = ExtraWorkspaceBytes(*device_, setup_, *larger);
  EXPECT_GT(extra, 4 * SessionWorkspaceBytes(*device_, setup_)) << "eight times the voxels";
  SessionSetup as_expected = setup_;
  as_expected.expected = {larger->geometry, larger->pixel_type, larger->total_bytes};
  EXPECT_EQ(SessionWorkspaceBytes(*device_, as_expected), extra);
  // As many voxels of a larger type.
  const auto wider = With([](v1::FrameHeader& header) {
    header.set_pixel_type(v1::PIXEL_TYPE_FLOAT64);
    header.set_total_bytes(8 * kVoxels);
  });
  EXPECT_GT(ExtraWorkspaceBytes(*device_, setup_, *wider), 0);
}

// A session whose frames name no masks takes no memory for them, so that a device has places for as many as before.
TEST_F(FrameWorkspaceTest, MasksOfFramesTakeMemoryWhereTheyAreExpected) {
  const int64_t without = SessionWorkspaceBytes(*device_, setup_);
  setup_.frame_masks = true;
  const int64_t with = SessionWorkspaceBytes(*device_, setup_);
  EXPECT_GE(with, without + kVoxels);
  EXPECT_LT(with, without + 3 * kVoxels) << "bytes, of all levels";
  // There is room for one mask, whoever names it.
  auto mask = std::make_shared<StoredVolume>();
  mask->image = setup_.resident->image.In(Buffer());
  setup_.plan.moving_mask = mask;
  EXPECT_EQ(SessionWorkspaceBytes(*device_, setup_), with);
  setup_.frame_masks = false;
  EXPECT_EQ(SessionWorkspaceBytes(*device_, setup_), with);
}

TEST_F(FrameWorkspaceTest, AFrameThatWasCancelledDoesNotRun) {
  const Seams seams = SystemSeams();
  const auto frame = With([](v1::FrameHeader&) {});
  frame->control.emplace(seams, std::nullopt);
  frame->control->Cancel();
  OwnedContext owned = *OwnedContext::Create(*device_, 16);
  const absl::Status status = RegisterFrame(owned.context(), setup_, FrameStart(), FrameHooks(), *frame);
  EXPECT_EQ(status, frame->control->CancelStatus());
  EXPECT_FALSE(status.ok());
}

}  // namespace
}  // namespace intrawarp::server
