// SPDX-License-Identifier: Apache-2.0
#include "server/session/session_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/device/device.h"
#include "server/context/limits.h"
#include "server/status/errors.h"
#include "server/store/durable_objects.h"
#include "server/store/transform_store.h"
#include "tests/server/partial_context.h"
#include "tests/server/state/test_files.h"
#include "wire/convert.h"

namespace intrawarp::server {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::nanoseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr Int3 kSize = {10, 9, 8};
constexpr int64_t kVoxels = 10 * 9 * 8;
// Field after field, with what a client may do to it.
using Change = std::function<void(v1::NavigateConfig&)>;

class SessionSetupTest : public testing::Test {
 protected:
  SessionSetupTest() {
    limits_.max_pending_frames = 4;
    parts_.volumes = &volumes_;
    parts_.transforms = &transforms_;
    parts_.limits = &limits_;
    parts_.durable = &durable_;
    ct_ = Volume("ct", "identity of ct");
    mask_ = Volume("mask", "identity of mask");
    config_.set_fixed("volumes/ct");
  }
  ~SessionSetupTest() override { durable_.Shutdown(); }

  // A volume of ann's in the store.
  std::shared_ptr<StoredVolume> Volume(const std::string& id, std::string identity) {
    auto volume = std::make_shared<StoredVolume>();
    volume->id = id;
    volume->owner = "ann";
    volume->pixel_type = PixelType::kInt16;
    identity.resize(32);
    volume->digest = identity;
    volume->content_digest = "content of " + id;
    Geometry grid;
    grid.size = kSize;
    OwnedContext owned = *OwnedContext::Create(*device_, size_t{8} << 20);
    const std::vector<int16_t> voxels(kVoxels, 7);
    volume->image = *PreparedImage::Prepare(owned.context(), voxels.data(), PixelType::kInt16, 1, 0, grid);
    EXPECT_TRUE(volumes_.Insert(volume).ok());
    return volume;
  }
  absl::StatusOr<SessionSetup> Resolve(const v1::NavigateConfig& config) {
    return ResolveNavigateConfig(parts_.Make(), config, caller_);
  }
  // The setup of a good config with this change.
  SessionSetup With(const Change& change) {
    v1::NavigateConfig config = config_;
    change(config);
    absl::StatusOr<SessionSetup> setup = Resolve(config);
    EXPECT_TRUE(setup.ok()) << setup.status();
    return setup.ok() ? *std::move(setup) : SessionSetup();
  }
  absl::Status StatusWith(const Change& change) {
    v1::NavigateConfig config = config_;
    change(config);
    return Resolve(config).status();
  }
  void ExpectRefused(const std::string& field, const Change& change) {
    const absl::Status status = StatusWith(change);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field << ": " << status;
    EXPECT_EQ(FieldOf(status), field) << status;
  }

  const std::unique_ptr<Device> device_ = *OpenDevice("cpu");
  const Seams seams_ = SystemSeams();
  ServerLimits limits_;
  VolumeStore volumes_;
  TransformStore transforms_;
  state::MemoryDisk disk_;
  state::LockedFiles files_{disk_};
  DurableObjects durable_;
  PartialContext parts_;
  Identity caller_{"ann", Role::kFrame};
  std::shared_ptr<StoredVolume> ct_, mask_;
  v1::NavigateConfig config_;
};

TEST_F(SessionSetupTest, EveryDefaultIsFilledIn) {
  config_.set_resume(false);
  const SessionSetup setup = With([](v1::NavigateConfig&) {});
  EXPECT_EQ(setup.owner, "ann");
  EXPECT_FALSE(setup.by_admin || setup.is_durable || setup.coarse_field || setup.cancel_running || setup.frame_masks);
  EXPECT_EQ(setup.resident, ct_);
  EXPECT_TRUE(setup.resident_is_fixed);
  EXPECT_TRUE(setup.plan.automatic);
  EXPECT_FALSE(setup.field || setup.frame_deadline || setup.rate_hz);
  EXPECT_EQ(setup.max_pending, 2);
  EXPECT_EQ(setup.overload_policy, OverloadPolicy::kKeepAll);
  EXPECT_EQ(setup.late_frames, LateFrames::kDrop);
  EXPECT_EQ(setup.resume_window, nanoseconds(0));
  EXPECT_EQ(setup.idle_timeout, minutes(15));
  EXPECT_EQ(setup.expected.geometry.size.x, 10);
  EXPECT_EQ(setup.expected.pixel_type, PixelType::kInt16);
  EXPECT_EQ(setup.expected.bytes, 2 * kVoxels);
  EXPECT_FALSE(setup.expected.is_promised);

  EXPECT_EQ(setup.asked.SerializeAsString(), config_.SerializeAsString());
  const v1::NavigateConfig& resolved = setup.resolved;
  EXPECT_EQ(resolved.fixed(), "volumes/ct");
  EXPECT_FALSE(resolved.has_resume());
  EXPECT_EQ(resolved.max_pending(), 2);
  EXPECT_EQ(resolved.overload_policy(), v1::OVERLOAD_POLICY_KEEP_ALL);
  EXPECT_TRUE(resolved.has_cancel_running() && resolved.has_coarse_field() && resolved.has_frame_masks());
  EXPECT_EQ(resolved.late_frames(), v1::LATE_FRAMES_DROP);
  EXPECT_TRUE(resolved.has_resume_window());
  EXPECT_EQ(resolved.idle_timeout().seconds(), 900);
  EXPECT_EQ(resolved.frame_geometry().size(2), 8);
  EXPECT_EQ(resolved.frame_pixel_type(), v1::PIXEL_TYPE_INT16);
  EXPECT_FALSE(resolved.has_frame_deadline() || resolved.has_rate_hz() || resolved.has_field());
}

TEST_F(SessionSetupTest, WhatIsAskedForIsTaken) {
  const SessionSetup setup = With([](v1::NavigateConfig& config) {
    config.clear_fixed();
    config.set_moving("volumes/ct");
    config.set_max_pending(3);
    config.set_overload_policy(v1::OVERLOAD_POLICY_LATEST_WINS);
    config.set_cancel_running(true);
    config.set_late_frames(v1::LATE_FRAMES_DELIVER);
    config.mutable_frame_deadline()->set_nanos(250'000'000);
    config.mutable_resume_window()->set_seconds(7);
    config.mutable_idle_timeout()->set_seconds(60);
    config.set_rate_hz(25);
  });
  EXPECT_FALSE(setup.resident_is_fixed);
  EXPECT_EQ(setup.resident, ct_);
  EXPECT_EQ(setup.max_pending, 3);
  EXPECT_EQ(setup.overload_policy, OverloadPolicy::kLatestWins);
  EXPECT_TRUE(setup.cancel_running);
  EXPECT_EQ(setup.late_frames, LateFrames::kDeliver);
  EXPECT_EQ(setup.frame_deadline, std::chrono::milliseconds(250));
  EXPECT_EQ(setup.resume_window, seconds(7));
  EXPECT_EQ(setup.idle_timeout, minutes(1));
  EXPECT_EQ(setup.rate_hz, 25);
  EXPECT_EQ(setup.resolved.overload_policy(), v1::OVERLOAD_POLICY_LATEST_WINS);
  EXPECT_EQ(setup.resolved.late_frames(), v1::LATE_FRAMES_DELIVER);
  EXPECT_TRUE(setup.resolved.cancel_running());
  EXPECT_EQ(setup.resolved.max_pending(), 3);
  EXPECT_EQ(setup.resolved.resume_window().seconds(), 7);
}

TEST_F(SessionSetupTest, ExactlyOneOfTheImagesIsResident) {
  ExpectRefused("config.fixed", [](v1::NavigateConfig& config) { config.clear_fixed(); });
  ExpectRefused("config.fixed", [](v1::NavigateConfig& config) { config.set_moving("volumes/ct"); });
  ExpectRefused("config.fixed", [](v1::NavigateConfig& config) { config.set_fixed("ct"); });
  ExpectRefused("config.moving", [](v1::NavigateConfig& config) {
    config.clear_fixed();
    config.set_moving("transforms/ct");
  });
  EXPECT_TRUE(absl::IsNotFound(StatusWith([](v1::NavigateConfig& config) { config.set_fixed("volumes/mr"); })));
  caller_ = {"bob", Role::kFrame};
  EXPECT_TRUE(absl::IsNotFound(StatusWith([](v1::NavigateConfig&) {}))) << "it is another owner's";
  caller_ = {"root", Role::kAdmin};
  const SessionSetup setup = With([](v1::NavigateConfig&) {});
  EXPECT_EQ(setup.owner, "root");
  EXPECT_TRUE(setup.by_admin);
}

TEST_F(SessionSetupTest, AnErrorOfTheOptionsNamesItsField) {
  ExpectRefused("config.options.error_limit_mm",
                [](v1::NavigateConfig& config) { config.mutable_options()->set_error_limit_mm(0); });
  ExpectRefused("config.options.stages[1].method", [](v1::NavigateConfig& config) {
    config.mutable_options()->add_stages()->mutable_rigid();
    config.mutable_options()->add_stages();
  });
  EXPECT_TRUE(absl::IsNotFound(
      StatusWith([](v1::NavigateConfig& config) { config.mutable_options()->set_fixed_mask("volumes/none"); })));
}

TEST_F(SessionSetupTest, FramesWaitUpToTheServersLimit) {
  const auto pending = [](int frames, v1::OverloadPolicy policy) {
    return [=](v1::NavigateConfig& config) {
      config.set_max_pending(frames);
      config.set_overload_policy(policy);
    };
  };
  for (const int frames : {1, 2, 4}) {
    EXPECT_EQ(With(pending(frames, v1::OVERLOAD_POLICY_KEEP_ALL)).max_pending, frames);
  }
  for (const int frames : {-1, 0, 5}) {
    ExpectRefused("config.max_pending", pending(frames, v1::OVERLOAD_POLICY_KEEP_ALL));
  }
  // One frame waits while another is received.
  ExpectRefused("config.max_pending", pending(1, v1::OVERLOAD_POLICY_LATEST_WINS));
  EXPECT_EQ(With(pending(2, v1::OVERLOAD_POLICY_LATEST_WINS)).max_pending, 2);
  EXPECT_THAT(std::string(StatusWith(pending(5, v1::OVERLOAD_POLICY_LATEST_WINS)).message()),
              HasSubstr("is 5, must be 2 to 4"));
  limits_.max_pending_frames = 1;
  EXPECT_EQ(With([](v1::NavigateConfig&) {}).max_pending, 1);
  ExpectRefused("config.max_pending",
                [](v1::NavigateConfig& config) { config.set_overload_policy(v1::OVERLOAD_POLICY_LATEST_WINS); });
}

TEST_F(SessionSetupTest, PoliciesAreKnownOnes) {
  ExpectRefused("config.overload_policy",
                [](v1::NavigateConfig& config) { config.set_overload_policy(static_cast<v1::OverloadPolicy>(77)); });
  ExpectRefused("config.late_frames",
                [](v1::NavigateConfig& config) { config.set_late_frames(static_cast<v1::LateFrames>(77)); });
  ExpectRefused("config.cancel_running", [](v1::NavigateConfig& config) { config.set_cancel_running(true); });
  EXPECT_FALSE(With([](v1::NavigateConfig& config) { config.set_cancel_running(false); }).cancel_running);
}

TEST_F(SessionSetupTest, ADeadlineIsADayAtMost) {
  const auto deadline = [](int64_t whole, int nanos) {
    return [=](v1::NavigateConfig& config) {
      config.mutable_frame_deadline()->set_seconds(whole);
      config.mutable_frame_deadline()->set_nanos(nanos);
    };
  };
  EXPECT_EQ(With(deadline(0, 1)).frame_deadline, nanoseconds(1));
  EXPECT_EQ(With(deadline(24 * 3600, 0)).frame_deadline, hours(24));
  ExpectRefused("config.frame_deadline", deadline(24 * 3600, 1));
  ExpectRefused("config.frame_deadline", deadline(0, 0));
  ExpectRefused("config.frame_deadline", deadline(-1, 0));
}

TEST_F(SessionSetupTest, AResumeWindowIsFiveMinutesAtMost) {
  const auto window = [](int64_t whole, int nanos) {
    return [=](v1::NavigateConfig& config) {
      config.set_session_id("mine");
      config.mutable_resume_window()->set_seconds(whole);
      config.mutable_resume_window()->set_nanos(nanos);
    };
  };
  EXPECT_EQ(With([](v1::NavigateConfig& config) { config.set_session_id("mine"); }).resume_window, seconds(30));
  EXPECT_EQ(With(window(0, 0)).resume_window, nanoseconds(0)) << "not at all";
  EXPECT_EQ(With(window(0, 5)).resume_window, nanoseconds(5));
  EXPECT_EQ(With(window(300, 0)).resume_window, minutes(5));
  for (const auto& [whole, nanos] : {std::pair<int64_t, int>{300, 1}, {301, 0}, {3601, 0}, {-1, 0}, {0, -1}}) {
    ExpectRefused("config.resume_window", window(whole, nanos));
  }
}

TEST_F(SessionSetupTest, ASessionIsIdleForAsLongAsTheServerAllows) {
  const auto idle = [](int64_t whole) {
    return [=](v1::NavigateConfig& config) { config.mutable_idle_timeout()->set_seconds(whole); };
  };
  limits_.max_session_idle = minutes(20);
  EXPECT_EQ(With(idle(1200)).idle_timeout, minutes(20));
  ExpectRefused("config.idle_timeout", idle(1201));
  EXPECT_THAT(std::string(StatusWith(idle(1201)).message()), HasSubstr("at most 1200 seconds"));
  ExpectRefused("config.idle_timeout", idle(0));
  ExpectRefused("config.idle_timeout", idle(std::numeric_limits<int64_t>::max()));
  limits_.max_session_idle = minutes(2);
  EXPECT_EQ(With([](v1::NavigateConfig&) {}).idle_timeout, minutes(2)) << "the default is no longer than the limit";
}

TEST_F(SessionSetupTest, ARateIsAboveNothing) {
  const auto rate = [](double hz) { return [=](v1::NavigateConfig& config) { config.set_rate_hz(hz); }; };
  EXPECT_EQ(With(rate(1000)).rate_hz, 1000);
  EXPECT_EQ(With(rate(0.001)).rate_hz, 0.001);
  for (const double hz :
       {0.0, -1.0, 1000.5, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    ExpectRefused("config.rate_hz", rate(hz));
  }
}

TEST_F(SessionSetupTest, MemoryIsForTheFramesThatTheClientNames) {
  Geometry larger;
  larger.size = {20, 9, 8};
  const auto frames = [&](v1::NavigateConfig& config) {
    *config.mutable_frame_geometry() = GeometryToProto(larger);
    config.set_frame_pixel_type(v1::PIXEL_TYPE_FLOAT32);
  };
  const SessionSetup setup = With(frames);
  EXPECT_EQ(setup.expected.geometry, larger);
  EXPECT_EQ(setup.expected.pixel_type, PixelType::kFloat32);
  EXPECT_EQ(setup.expected.bytes, 2 * kVoxels * 4);
  EXPECT_TRUE(setup.expected.is_promised);
  EXPECT_EQ(setup.resolved.frame_geometry().size(0), 20);
  EXPECT_EQ(setup.resolved.frame_pixel_type(), v1::PIXEL_TYPE_FLOAT32);
  // A type by itself promises no grid.
  const SessionSetup typed =
      With([](v1::NavigateConfig& config) { config.set_frame_pixel_type(v1::PIXEL_TYPE_UINT8); });
  EXPECT_EQ(typed.expected.bytes, kVoxels);
  EXPECT_FALSE(typed.expected.is_promised);

  ExpectRefused("config.frame_geometry.size", [](v1::NavigateConfig& config) { config.mutable_frame_geometry(); });
  ExpectRefused("config.frame_pixel_type",
                [](v1::NavigateConfig& config) { config.set_frame_pixel_type(static_cast<v1::PixelType>(77)); });
  limits_.max_volume_bytes = 2 * kVoxels * 4;
  EXPECT_TRUE(StatusWith(frames).ok());
  limits_.max_volume_bytes -= 1;
  ExpectRefused("config.frame_geometry", frames);
  // The resident volume was accepted once; its frames get what there is.
  limits_.max_volume_bytes = 100;
  EXPECT_EQ(With([](v1::NavigateConfig&) {}).expected.bytes, 100);
}

TEST_F(SessionSetupTest, AFieldFitsTheGridOfAFixedVolume) {
  const auto region = [](int64_t begin, int64_t size) {
    return [=](v1::NavigateConfig& config) {
      v1::FieldRequest& field = *config.mutable_field();
      field.set_encoding(v1::FIELD_ENCODING_FLOAT32);
      for (int axis = 0; axis < 3; ++axis) {
        field.add_region_start(begin);
        field.add_region_size(size);
      }
    };
  };
  const SessionSetup setup = With(region(1, 7));
  ASSERT_TRUE(setup.field.has_value());
  EXPECT_EQ(setup.field->region_size.z, 7);
  ExpectRefused("config.field.region_size", region(1, 8));
  ExpectRefused("config.field.encoding", [](v1::NavigateConfig& config) { config.mutable_field(); });
  // Frames may be of any grid.
  EXPECT_TRUE(With([&](v1::NavigateConfig& config) {
                region(1, 8)(config);
                config.clear_fixed();
                config.set_moving("volumes/ct");
              }).field.has_value());
  ExpectRefused("config.field.encoding", [](v1::NavigateConfig& config) {
    config.mutable_field()->set_encoding(v1::FIELD_ENCODING_CONTROL_POINTS);
    config.mutable_options()->add_stages()->mutable_rigid();
  });
}

TEST_F(SessionSetupTest, ACoarseFieldComesFromADeformationThatIsNamed) {
  const auto coarse = [](const std::function<void(v1::Stage&)>& last) {
    return [last](v1::NavigateConfig& config) {
      config.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
      config.set_coarse_field(true);
      config.mutable_options()->add_stages()->mutable_rigid();
      last(*config.mutable_options()->add_stages());
    };
  };
  EXPECT_TRUE(With(coarse([](v1::Stage& stage) { stage.mutable_ffd(); })).coarse_field);
  EXPECT_TRUE(With(coarse([](v1::Stage& stage) { stage.mutable_log_demons(); })).resolved.coarse_field());
  ExpectRefused("config.coarse_field", coarse([](v1::Stage& stage) { stage.mutable_affine(); }));
  ExpectRefused("config.coarse_field", coarse([](v1::Stage& stage) { stage.mutable_search(); }));
  ExpectRefused("config.coarse_field", [&](v1::NavigateConfig& config) {
    coarse([](v1::Stage& stage) { stage.mutable_ffd(); })(config);
    config.clear_field();
  });
  ExpectRefused("config.coarse_field", [&](v1::NavigateConfig& config) {
    coarse([](v1::Stage& stage) { stage.mutable_ffd(); })(config);
    config.mutable_options()->clear_stages();
  });
}

TEST_F(SessionSetupTest, FramesHaveMasksWhereTheConfigSaysSo) {
  const SessionSetup setup = With([](v1::NavigateConfig& config) { config.set_frame_masks(true); });
  EXPECT_TRUE(setup.frame_masks);
  EXPECT_TRUE(setup.resolved.frame_masks());
}

TEST_F(SessionSetupTest, WithAWindowASessionOutlivesARestartWhereTheServerKeepsItsObjects) {
  const auto window = [](v1::NavigateConfig& config) { config.mutable_resume_window()->set_seconds(1); };
  EXPECT_FALSE(With(window).is_durable);
  ASSERT_TRUE(durable_.Open(files_, "d", seams_).ok());
  EXPECT_TRUE(With(window).is_durable);
  EXPECT_FALSE(With([](v1::NavigateConfig&) {}).is_durable);
}

TEST_F(SessionSetupTest, ItsInputsArePointersThatABringingExchanges) {
  SessionSetup setup =
      With([](v1::NavigateConfig& config) { config.mutable_options()->set_moving_mask("volumes/mask"); });
  const Inputs inputs = InputsOf(setup);
  ASSERT_EQ(inputs.volumes.size(), 5);
  EXPECT_EQ(inputs.volumes[0], &setup.resident);
  EXPECT_EQ(inputs.volumes[1], &setup.plan.fixed_mask);
  EXPECT_EQ(inputs.volumes[2], &setup.plan.moving_mask);
  EXPECT_EQ(inputs.volumes[3], &setup.plan.fixed_weight);
  EXPECT_EQ(inputs.volumes[4], &setup.plan.moving_weight);
  EXPECT_EQ(*inputs.volumes[1], nullptr);
  EXPECT_EQ(*inputs.volumes[2], mask_);
  ASSERT_EQ(inputs.transforms.size(), 1);
  EXPECT_EQ(inputs.transforms[0], &setup.plan.initial_transform);
  EXPECT_TRUE(inputs.matrices.empty());
}

class SessionPrintTest : public SessionSetupTest {
 protected:
  SessionPrintTest() {
    for (const char* const id : {"start", "other"}) {
      auto stored = std::make_shared<StoredTransform>(
          StoredTransform{id, {}, std::nullopt, nullptr, Transform(AffineMap::Identity())});
      stored->owner = "ann";
      stored->digest = std::string(id) + " of a client";
      EXPECT_TRUE(transforms_.Insert(stored).ok());
    }
  }
  SessionSetup Setup(const std::string& fixed_mask, const std::string& start, const std::string& moving_weight = "") {
    return With([&](v1::NavigateConfig& config) {
      if (!moving_weight.empty()) config.mutable_options()->set_moving_weight(moving_weight);
      if (!fixed_mask.empty()) config.mutable_options()->set_fixed_mask(fixed_mask);
      if (!start.empty()) config.mutable_options()->set_initial_transform(start);
    });
  }
};

TEST_F(SessionPrintTest, APrintIsOfTheVolumeAndOfWhatElseThereIs) {
  const SessionSetup plain = Setup("", ""), masked = Setup("volumes/mask", ""), started = Setup("", "transforms/start");
  const SessionSetup weighed = Setup("", "", "volumes/mask");
  EXPECT_EQ(PrintOf(plain), ct_->digest) << "as it was before there were others";
  EXPECT_EQ(PrintOf(masked).size(), 32 + 3 * InputPrint::kBytes);
  EXPECT_EQ(PrintOf(masked).substr(0, 32), ct_->digest);
  EXPECT_EQ(PrintOf(weighed).size(), 32 + 5 * InputPrint::kBytes);
  for (const SessionSetup* const own : {&plain, &masked, &started, &weighed}) {
    for (const SessionSetup* const other : {&plain, &masked, &started, &weighed}) {
      EXPECT_EQ(HasPrint(*own, PrintOf(*other), true), own == other);
    }
  }
}

TEST_F(SessionPrintTest, TheStartCountsIfItShould) {
  const SessionSetup plain = Setup("", ""), started = Setup("", "transforms/start");
  const SessionSetup other = Setup("", "transforms/other"), masked = Setup("volumes/mask", "transforms/start");
  EXPECT_TRUE(HasPrint(plain, PrintOf(started), false));
  EXPECT_TRUE(HasPrint(started, PrintOf(plain), false));
  EXPECT_TRUE(HasPrint(started, PrintOf(other), false));
  EXPECT_FALSE(HasPrint(started, PrintOf(other), true));
  EXPECT_FALSE(HasPrint(started, PrintOf(masked), false)) << "a mask counts always";
  const SessionSetup weighed = Setup("", "transforms/start", "volumes/mask");
  EXPECT_FALSE(HasPrint(started, PrintOf(weighed), false)) << "weights count always";
  EXPECT_TRUE(HasPrint(weighed, PrintOf(Setup("", "transforms/other", "volumes/mask")), false));
}

TEST_F(SessionPrintTest, AnotherVolumeAndDamagedPrintsAreNone) {
  const SessionSetup plain = Setup("", ""), masked = Setup("volumes/mask", "");
  std::string print = PrintOf(plain);
  EXPECT_FALSE(HasPrint(plain, "", true));
  EXPECT_FALSE(HasPrint(plain, print.substr(1), true));
  EXPECT_TRUE(HasPrint(plain, print + std::string(5 * InputPrint::kBytes, '\0'), true)) << "others that are none";
  EXPECT_FALSE(HasPrint(plain, print + std::string(5 * InputPrint::kBytes + 1, '\0'), true)) << "longer than any";
  print[31] ^= 1;
  EXPECT_FALSE(HasPrint(plain, print, false));
  EXPECT_FALSE(HasPrint(masked, PrintOf(masked).substr(0, 32 + InputPrint::kBytes - 1), true));
}

TEST_F(SessionPrintTest, ASessionThatHasChosenCostsOtherwise) {
  const SessionSetup setup = Setup("", "");
  EXPECT_NE(FrameCostKind(setup, false), FrameCostKind(setup, true));
  EXPECT_NE(FrameCostKind(setup, false), FrameCostKind(Setup("volumes/mask", ""), false));
}

}  // namespace
}  // namespace intrawarp::server
