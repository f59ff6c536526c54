// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/device/faulty_device.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/registration/registration.h"
#include "engine/sparse/multiply.h"
#include "tests/engine/device_test.h"
#include "tests/engine/sparse/reference.h"

namespace intrawarp {
namespace {

constexpr absl::StatusCode kFull = absl::StatusCode::kResourceExhausted, kLost = absl::StatusCode::kUnavailable;

class FaultyDeviceTest : public testing::TestWithParam<std::string> {
 protected:
  FaultyDeviceTest() : device_(*OpenDevice(GetParam())), stream_(*device_.CreateStream(Partition::kWhole)) {
    event_.emplace(*device_.CreateEvent());
    memory_ = *device_.Allocate(sizeof(values_), stream());
    start_ = device_.live();
  }

  FaultyDevice& device() { return device_; }
  StreamView stream() const { return stream_.view(); }

  absl::Status Call(DeviceCall kind) {
    switch (kind) {
      case DeviceCall::kAllocate:
        return device_.Allocate(100, stream()).status();
      case DeviceCall::kAllocatePinned:
        return device_.AllocatePinned(100).status();
      case DeviceCall::kCopy:
        return device_.Copy(memory_.as<void>(), values_, sizeof(values_), stream());
      case DeviceCall::kFill:
        return device_.Fill(memory_.as<void>(), 1, sizeof(values_), stream());
      case DeviceCall::kSynchronize:
        return device_.Synchronize(stream());
      case DeviceCall::kCreateStream:
        return device_.CreateStream(Partition::kWhole).status();
      case DeviceCall::kCreateEvent:
        return device_.CreateEvent().status();
      case DeviceCall::kRecordEvent:
        return event_->Record(stream());
      case DeviceCall::kWaitEvent:
        return event_->Wait();
    }
    return absl::InternalError("no such call");
  }

  FaultyDevice device_;
  Stream stream_;
  std::optional<Event> event_;
  Buffer memory_;
  LiveObjects start_;
  int values_[4] = {1, 2, 3, 4};
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(FaultyDeviceTest);

std::vector<DeviceCall> EveryKind() {
  std::vector<DeviceCall> kinds;
  for (int i = 0; i < kDeviceCalls; ++i) kinds.push_back(static_cast<DeviceCall>(i));
  return kinds;
}

TEST_P(FaultyDeviceTest, FailsTheNthCallOfAKindOnce) {
  for (const DeviceCall kind : EveryKind()) {
    SCOPED_TRACE(static_cast<int>(kind));
    device().FailAt(2, absl::ResourceExhaustedError("full"), kind);
    for (const DeviceCall other : EveryKind()) {
      if (other == kind) continue;
      EXPECT_OK(Call(other)) << static_cast<int>(other);
    }
    EXPECT_OK(Call(kind));
    EXPECT_EQ(Call(kind).code(), kFull);
    EXPECT_OK(Call(kind));
  }
  EXPECT_OK(device().health());
}

TEST_P(FaultyDeviceTest, FailsTheNthOfAllCallsUnlessDisarmed) {
  device().FailAt(3, absl::ResourceExhaustedError("full"));
  EXPECT_OK(Call(DeviceCall::kFill));
  EXPECT_OK(Call(DeviceCall::kAllocate));
  EXPECT_EQ(Call(DeviceCall::kSynchronize).code(), kFull);
  EXPECT_OK(Call(DeviceCall::kSynchronize));
  device().FailAt(1, absl::ResourceExhaustedError("full"));
  device().Disarm();
  EXPECT_OK(Call(DeviceCall::kFill));
}

TEST_P(FaultyDeviceTest, AFailedCallHasNoEffect) {
  device().FailAt(1, absl::InternalError("no"), DeviceCall::kFill);
  ASSERT_OK(Call(DeviceCall::kCopy));
  EXPECT_EQ(Call(DeviceCall::kFill).code(), absl::StatusCode::kInternal);
  int back[4] = {};
  ASSERT_OK(device().Copy(back, memory_.as<void>(), sizeof(back), stream()));
  ASSERT_OK(device().Synchronize(stream()));
  EXPECT_TRUE(std::equal(std::begin(back), std::end(back), values_));
}

TEST_P(FaultyDeviceTest, UnavailableStays) {
  device().FailAt(2, absl::UnavailableError("lost"));
  ASSERT_OK(Call(DeviceCall::kFill));
  EXPECT_OK(device().health());
  for (const DeviceCall kind : EveryKind()) EXPECT_EQ(Call(kind).code(), kLost);
  EXPECT_EQ(device().health().code(), kLost);
  EXPECT_EQ(device().memory().status().code(), kLost);
  EXPECT_EQ(device().Warm(1).code(), kLost);
  memory_ = Buffer();
  event_.reset();
  EXPECT_EQ(device().live(), (LiveObjects{.streams = 1}));
}

TEST_P(FaultyDeviceTest, RunsAFunctionBeforeACall) {
  int runs = 0;
  device().RunAt(2, [&] {
    ++runs;
    EXPECT_OK(device().health());
    EXPECT_OK(Call(DeviceCall::kFill));
  });
  EXPECT_OK(Call(DeviceCall::kFill));
  EXPECT_EQ(runs, 0);
  EXPECT_OK(Call(DeviceCall::kAllocate));
  EXPECT_OK(Call(DeviceCall::kAllocate));
  EXPECT_EQ(runs, 1);
}

TEST_P(FaultyDeviceTest, BlocksACallUntilItIsReleased) {
  for (const absl::StatusCode code : {absl::StatusCode::kOk, kLost}) {
    device().BlockAt(1, DeviceCall::kSynchronize);
    absl::Status synchronized = absl::UnknownError("not yet");
    std::thread caller([&] { synchronized = Call(DeviceCall::kSynchronize); });
    device().AwaitBlocked();
    EXPECT_OK(Call(DeviceCall::kFill));
    EXPECT_OK(Call(DeviceCall::kSynchronize));
    EXPECT_OK(device().health());
    device().Release(absl::Status(code, "released"));
    caller.join();
    EXPECT_EQ(synchronized.code(), code);
    EXPECT_EQ(device().health().code(), code);
  }
}

TEST_P(FaultyDeviceTest, CountsCallsByKind) {
  const int64_t before = device().calls();
  EXPECT_EQ(device().calls(DeviceCall::kCopy), 0);
  device().FailAt(2, absl::InternalError("no"), DeviceCall::kCopy);
  for (int i = 0; i < 3; ++i) (void)Call(DeviceCall::kCopy);
  EXPECT_OK(Call(DeviceCall::kRecordEvent));
  EXPECT_OK(device().CreateStreamLike(stream()).status());
  EXPECT_EQ(device().calls(DeviceCall::kCopy), 3);
  EXPECT_EQ(device().calls(DeviceCall::kRecordEvent), 1);
  EXPECT_EQ(device().calls(DeviceCall::kCreateStream), 2);
  EXPECT_EQ(device().calls(), before + 5);
}

TEST_P(FaultyDeviceTest, CountsWhatLives) {
  EXPECT_EQ(start_, (LiveObjects{.buffers = 1, .buffer_bytes = sizeof(values_), .streams = 1, .events = 1}));
  {
    const Stream other = *device().CreateStream(Partition::kFrames);
    Buffer buffer = *device().Allocate(1000, other.view());
    const Buffer moved = std::move(buffer);
    const PinnedBuffer pinned = *device().AllocatePinned(300);
    const Event event = *device().CreateEvent();
    EXPECT_EQ(device().live(), (LiveObjects{.buffers = 2,
                                            .buffer_bytes = 1000 + sizeof(values_),
                                            .pinned_buffers = 1,
                                            .pinned_bytes = 300,
                                            .streams = 2,
                                            .events = 2}));
  }
  EXPECT_EQ(device().live(), start_);
}

// Computations on a device whose n-th call fails, for every n; where there are more calls than kMostFaults (the search
// for a start on a GPU asks for thousands of sums), for n evenly spread over them.
constexpr int64_t kMostFaults = 200;

class DeviceFaultSweepTest : public FaultyDeviceTest {
 protected:
  // `compute` succeeds without faults; with one it returns its error and leaves nothing behind.
  void Sweep(const std::function<absl::Status(FaultyDevice&)>& compute) {
    const int64_t before = device().calls();
    const absl::Status done = compute(device());
    ASSERT_OK(done) << done;
    const int64_t calls = device().calls() - before;
    ASSERT_GT(calls, 0);
    EXPECT_EQ(device().live(), start_);
    for (int64_t n = 1; n <= calls; n += 1 + calls / kMostFaults) {
      SCOPED_TRACE(n);
      device().FailAt(n, absl::ResourceExhaustedError("injected"));
      const absl::Status status = compute(device());
      EXPECT_EQ(status.code(), kFull) << status;
      EXPECT_EQ(device().live(), start_);
      device().Disarm();
    }
    EXPECT_OK(compute(device()));
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(DeviceFaultSweepTest);

absl::StatusOr<PreparedImage> Waves(const ExecContext& ctx, double phase) {
  Geometry g;
  g.size = {24, 20, 18};
  std::vector<float> values;
  for (int z = 0; z < g.size.z; ++z)
    for (int y = 0; y < g.size.y; ++y)
      for (int x = 0; x < g.size.x; ++x) {
        const double wave = 20 * std::sin(0.4 * x + phase) * std::cos(0.3 * y) + 9 * std::sin(z);
        values.push_back(static_cast<float>(100 + wave));
      }
  return PreparedImage::Prepare(ctx, values.data(), PixelType::kFloat32, 1, 0, g);
}

absl::Status RegisterWaves(Device& device, const StageOptions& stage) {
  INTRAWARP_ASSIGN_OR_RETURN(OwnedContext owned, OwnedContext::Create(device, size_t{64} << 20));
  const ExecContext ctx = owned.context();
  INTRAWARP_ASSIGN_OR_RETURN(const PreparedImage fixed, Waves(ctx, 0));
  INTRAWARP_ASSIGN_OR_RETURN(const PreparedImage moving, Waves(ctx, 0.3));
  const RegistrationInput input{&fixed, &moving, nullptr, nullptr, {stage}, std::nullopt};
  return Register(ctx, input).status();
}

TEST_P(DeviceFaultSweepTest, Registrations) {
  for (const StageOptions& stage :
       std::vector<StageOptions>{AffineOptions{.iterations = 3}, FfdOptions{.levels = 1, .iterations = 2},
                                 FfdOptions{.metric = MetricKind::kLncc, .levels = 1, .iterations = 2},
                                 LogDemonsOptions{.levels = 1, .iterations = 2}}) {
    SCOPED_TRACE(testing::Message() << MethodName(stage));
    Sweep([&](FaultyDevice& device) { return RegisterWaves(device, stage); });
  }
}

TEST_P(DeviceFaultSweepTest, Products) {
  const HostCsr<float> matrix = CastValues<float>(RandomMatrix(60, 60, 0.1, 3));
  Sweep([&](FaultyDevice& device) -> absl::Status {
    INTRAWARP_ASSIGN_OR_RETURN(OwnedContext owned, OwnedContext::Create(device, size_t{64} << 20));
    const ExecContext ctx = owned.context();
    INTRAWARP_ASSIGN_OR_RETURN(const CsrMatrix a, CsrMatrix::Upload(device, ctx.stream(), matrix));
    INTRAWARP_ASSIGN_OR_RETURN(const CsrMatrix c, Multiply(ctx, a.view(), a.view(), {}));
    return c.Download<float>(device, ctx.stream()).status();
  });
}

}  // namespace
}  // namespace intrawarp
