// SPDX-License-Identifier: Apache-2.0
// Fields as streams, on the CPU device; what their bytes are, bulk_stream_test.cc asks on every device.
#include "server/bulk/field_stream.h"

#include <gmock/gmock.h>

#include <cstdint>
#include <cstring>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/field_error.h"
#include "server/bulk/bulk_stream.h"
#include "tests/engine/device/faulty_device.h"
#include "tests/engine/device_test.h"
#include "tests/server/device_parts.h"

namespace intrawarp::server {
namespace {

// More than one slab, and not a multiple of one.
constexpr Int3 kSize{70, 65, 120};

class FieldStreamTest : public testing::Test {
 protected:
  FieldStreamTest() : owned_(*OwnedContext::Create(device_, size_t{1} << 20)) {}

  ExecContext ctx() { return owned_.context(); }
  static Transform Affine() {
    AffineMap map = AffineMap::Identity();
    map.m[0][1] = 0.25;
    map.m[1][3] = -3;
    return Transform(map);
  }
  // On a grid of 5 x 4 x 6 control points.
  Transform Spline() {
    const Geometry grid = ObliqueGeometry({5, 4, 6});
    const std::vector<float> values = RandomFloats(3 * grid.voxels(), 7);
    Buffer memory = *device_.Allocate(values.size() * sizeof(float), ctx().stream());
    EXPECT_OK(device_.Copy(memory.as<void>(), values.data(), values.size() * sizeof(float), ctx().stream()));
    return Transform(AffineMap::Identity(), std::move(memory), grid, ObliqueGeometry({20, 20, 20}));
  }
  static FieldRequest Displacements(ComponentType component) {
    FieldRequest request;
    request.component = component;
    return request;
  }
  static FieldRequest ControlPoints() {
    FieldRequest request;
    request.form = FieldForm::kControlPoints;
    return request;
  }
  Grant TakeFor(const FieldRequest& request, int64_t total_bytes, int64_t offset) {
    return parts_.Take(FieldStreamAmounts(device_, request, grid_, total_bytes, offset));
  }
  // All bytes of a stream.
  std::string Drain(const std::shared_ptr<DeviceBulk>& bulk) {
    std::string bytes;
    std::promise<absl::Status> ended;
    std::mutex mutex;
    const auto take = [&] {
      std::lock_guard<std::mutex> lock(mutex);
      while (const std::optional<BulkPiece> piece = bulk->Take(std::numeric_limits<int64_t>::max())) {
        bytes.append(piece->data, static_cast<size_t>(piece->bytes));
      }
    };
    EXPECT_OK(bulk->Start([&](const absl::Status& status) {
      take();
      if (!status.ok() || bulk->ended()) ended.set_value(status);
      return status.ok();
    }));
    EXPECT_OK(ended.get_future().get());
    return bytes;
  }
  std::string StreamOf(const FieldRequest& request, const Transform& transform, int64_t total_bytes, int64_t offset) {
    Grant grant = TakeFor(request, total_bytes, offset);
    const auto stream = MakeFieldStream(ctx(), parts_[0], request, transform, nullptr, grid_, offset, grant);
    EXPECT_TRUE(stream.ok()) << stream.status();
    EXPECT_EQ(grant.held().pinned_bytes, 0);
    EXPECT_EQ(grant.resident_bytes(), 0);
    EXPECT_EQ(stream->header.total_bytes(), total_bytes);
    std::string bytes = Drain(stream->bulk);
    // The lane's last closure goes after its bytes.
    std::promise<void> idle;
    EXPECT_OK(parts_.lane().Submit([&](const auto&) { idle.set_value(); }));
    idle.get_future().wait();
    return bytes;
  }

  FaultyDevice device_{*OpenDevice("cpu")};
  OwnedContext owned_;
  DeviceParts parts_{{&device_}};
  const Geometry grid_ = ObliqueGeometry(kSize);
};

TEST_F(FieldStreamTest, BringsTheFieldAsItIs) {
  const int64_t bytes = 12 * grid_.voxels();
  std::vector<float> expected(3 * static_cast<size_t>(grid_.voxels()));
  ASSERT_OK(EvaluateField(ctx(), Affine(), grid_, 0, grid_.voxels(), expected.data()));
  const std::string got = StreamOf(Displacements(ComponentType::kFloat32), Affine(), bytes, 0);
  ASSERT_EQ(static_cast<int64_t>(got.size()), bytes);
  EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size()), 0);
  EXPECT_EQ(parts_.in_use(Resource::kPinned), 0);
}

TEST_F(FieldStreamTest, TheBytesDoNotDependOnWhereItBegins) {
  for (const ComponentType component : {ComponentType::kFloat32, ComponentType::kInt16}) {
    const FieldRequest request = Displacements(component);
    const int64_t bytes = FieldBytes(request, grid_);
    const std::string whole = StreamOf(request, Affine(), bytes, 0);
    for (const int64_t offset : {int64_t{1}, bytes / 2, bytes - 1}) {
      EXPECT_TRUE(StreamOf(request, Affine(), bytes, offset) == whole.substr(offset)) << offset;
    }
  }
}

TEST_F(FieldStreamTest, ControlPointsAreCopiedAsTheyLie) {
  const Transform spline = Spline();
  const ConstFieldView grid = spline.control_grid();
  const int64_t bytes = 12 * grid.geometry.voxels();
  const std::string points(reinterpret_cast<const char*>(grid.data), static_cast<size_t>(bytes));
  EXPECT_EQ(StreamOf(ControlPoints(), spline, bytes, 0), points);
  EXPECT_EQ(StreamOf(ControlPoints(), spline, bytes, 100), points.substr(100));
}

TEST_F(FieldStreamTest, OnlyWhatIsEvaluatedHasASource) {
  for (const bool is_evaluated : {true, false}) {
    const FieldRequest request = is_evaluated ? Displacements(ComponentType::kFloat16) : ControlPoints();
    const Transform spline = Spline();
    const int64_t bytes = is_evaluated ? FieldBytes(request, grid_) : 12 * spline.control_grid().geometry.voxels();
    Grant grant = TakeFor(request, bytes, 0);
    const auto stream = MakeFieldStream(ctx(), parts_[0], request, spline, nullptr, grid_, 0, grant);
    ASSERT_TRUE(stream.ok()) << stream.status();
    EXPECT_EQ(stream->source != nullptr, is_evaluated);
    if (!is_evaluated) continue;
    EXPECT_EQ(stream->source->latency().phase(Phase::kEncode).count(), 0);
    Drain(stream->bulk);
    EXPECT_GT(stream->source->latency().phase(Phase::kEncode).count(), 0);
  }
}

TEST_F(FieldStreamTest, KeepsTheTransformsMemoryAccounted) {
  for (const FieldRequest& request : {Displacements(ComponentType::kFloat32), ControlPoints()}) {
    auto owner = std::make_shared<int>(0);
    const std::weak_ptr<int> kept = owner;
    std::optional<Transform> spline = Spline();
    const bool is_points = request.form == FieldForm::kControlPoints;
    Grant grant =
        TakeFor(request, is_points ? 12 * spline->control_grid().geometry.voxels() : FieldBytes(request, grid_), 0);
    auto stream = MakeFieldStream(ctx(), parts_[0], request, *spline, std::move(owner), grid_, 0, grant);
    ASSERT_TRUE(stream.ok()) << stream.status();
    const int64_t buffers = device_.live().buffers;
    spline.reset();
    EXPECT_EQ(device_.live().buffers, buffers) << "the stream has it";
    EXPECT_FALSE(kept.expired());
    Drain(stream->bulk);
    stream = absl::CancelledError();
    std::promise<void> idle;
    ASSERT_OK(parts_.lane().Submit([&](const auto&) { idle.set_value(); }));
    idle.get_future().wait();
    EXPECT_TRUE(kept.expired());
    EXPECT_LT(device_.live().buffers, buffers);
  }
}

TEST_F(FieldStreamTest, HoldsScratchForASlabWhereItEncodes) {
  const auto amounts = [&](const FieldRequest& request) {
    return FieldStreamAmounts(device_, request, grid_, FieldBytes(request, grid_), 0);
  };
  EXPECT_EQ(amounts(Displacements(ComponentType::kFloat32)).resident_bytes, 0) << "the CPU evaluates in place";
  EXPECT_GE(amounts(Displacements(ComponentType::kInt16)).resident_bytes, kSlabVoxels * 12);
  EXPECT_EQ(amounts(ControlPoints()).resident_bytes, 0);
  for (const FieldRequest& request : {Displacements(ComponentType::kFloat32), Displacements(ComponentType::kInt16)}) {
    EXPECT_EQ(amounts(request).pinned_bytes,
              DeviceBulk::RingBytes(FieldBytes(request, grid_), FieldSource::SlabBytes(request), 0));
  }
  EXPECT_EQ(FieldStreamAmounts(device_, ControlPoints(), grid_, 9 << 20, 0).pinned_bytes,
            DeviceBulk::RingBytes(9 << 20, ResidentSource::kSlabBytes, 0));
  EXPECT_EQ(FieldStreamAmounts(device_, ControlPoints(), grid_, 9 << 20, 9 << 20).pinned_bytes, 0);
}

TEST_F(FieldStreamTest, AFormThatTheTransformLacksIsRefused) {
  for (const FieldForm form : {FieldForm::kControlPoints, FieldForm::kVelocity}) {
    FieldRequest request;
    request.form = form;
    Grant grant = TakeFor(request, 1000, 0);
    const Amounts before = grant.held();
    const absl::Status status = MakeFieldStream(ctx(), parts_[0], request, Affine(), nullptr, grid_, 0, grant).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_EQ(FieldOf(status), "field.encoding");
    EXPECT_EQ(static_cast<const Amounts&>(grant.held()), before) << "nothing was taken";
  }
}

TEST_F(FieldStreamTest, WhatAnEncodingCannotHoldIsRefused) {
  AffineMap far = AffineMap::Identity();
  far.m[0][3] = 1e6;
  const FieldRequest request = Displacements(ComponentType::kFloat16);
  Grant grant = TakeFor(request, FieldBytes(request, grid_), 0);
  const absl::Status status =
      MakeFieldStream(ctx(), parts_[0], request, Transform(far), nullptr, grid_, 0, grant).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(FieldOf(status), "field.encoding");
}

TEST_F(FieldStreamTest, AnErrorOfTheDeviceTakesNothing) {
  const FieldRequest request = Displacements(ComponentType::kInt16);
  {
    Grant grant = TakeFor(request, FieldBytes(request, grid_), 0);
    device_.FailAt(1, absl::ResourceExhaustedError("no page to lock"), DeviceCall::kAllocatePinned);
    const absl::Status status = MakeFieldStream(ctx(), parts_[0], request, Affine(), nullptr, grid_, 0, grant).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  }
  EXPECT_EQ(parts_.in_use(Resource::kPinned), 0);
  EXPECT_EQ(parts_.in_use(Resource::kResident), 0);
  EXPECT_EQ(device_.live().pinned_buffers, 0);
}

TEST_F(FieldStreamTest, NeedsTheWorkspaceItAsksFor) {
  OwnedContext exact = *OwnedContext::Create(device_, static_cast<size_t>(FieldStreamWorkspaceBytes()));
  const FieldRequest request = Displacements(ComponentType::kInt16);
  Grant grant = TakeFor(request, FieldBytes(request, grid_), 0);
  EXPECT_OK(MakeFieldStream(exact.context(), parts_[0], request, Affine(), nullptr, grid_, 0, grant).status());
}

}  // namespace
}  // namespace intrawarp::server
