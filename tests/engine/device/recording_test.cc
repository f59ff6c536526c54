// SPDX-License-Identifier: Apache-2.0
#include "engine/device/recording.h"

#include <vector>

#include "engine/transform/vector_field.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

constexpr Int3 kSize{21, 18, 7};
constexpr size_t kFloats = size_t{3} * 21 * 18 * 7;

class RecordingTest : public DeviceTest {
 protected:
  // io smoothed once.
  static absl::Status Smooth(const ExecContext& ctx, float* io) {
    return SmoothVectorField(ctx, io, kSize, {1, 1, 1}, io);
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(RecordingTest);

TEST_P(RecordingTest, RunsWhenAndAsOftenAsItIsEnqueued) {
  const std::vector<float> values = RandomFloats(kFloats, 1, -1, 1);
  float *direct = Upload(values), *io = Upload(values);
  int calls = 0;
  const auto recording = Recording::Make(ctx(), [&](const ExecContext& c) {
    ++calls;
    return Smooth(c, io);
  });
  ASSERT_OK(recording) << recording.status();
  EXPECT_EQ(Download(io, kFloats), values);
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(recording->Enqueue(ctx()));
    ASSERT_OK(Smooth(ctx(), direct));
  }
  EXPECT_EQ(Download(io, kFloats), Download(direct, kFloats));
  EXPECT_EQ(calls, ctx().is_cuda() ? 1 : 3);
}

// On CUDA the driver's form of one is used again for the next one of the same shape, with its own memory and sizes, and
// two that exist at once have a form each.
TEST_P(RecordingTest, OneAfterAndBesideAnotherOfTheSameShape) {
  const std::vector<float> values = RandomFloats(kFloats, 5, -1, 1);
  float* direct = Upload(values);
  ASSERT_OK(Smooth(ctx(), direct));
  const std::vector<float> expected = Download(direct, kFloats);
  std::optional<Recording> before;
  for (int i = 0; i < 4; ++i) {
    float* io = Upload(values);
    absl::StatusOr<Recording> recording = Recording::Make(ctx(), [io](const ExecContext& c) { return Smooth(c, io); });
    ASSERT_OK(recording) << recording.status();
    ASSERT_OK(recording->Enqueue(ctx()));
    EXPECT_EQ(Download(io, kFloats), expected) << i;
    if (before) {
      const std::vector<float> unchanged = Download(io, kFloats);
      ASSERT_OK(before->Enqueue(ctx()));
      EXPECT_EQ(Download(io, kFloats), unchanged) << i;
    }
    if (i % 2 == 0) before.emplace(*std::move(recording));
  }
}

TEST_P(RecordingTest, AnErrorOfTheWorkIsReturnedAndTheStreamGoesOn) {
  const auto fails = [](const ExecContext&) { return absl::InvalidArgumentError("no"); };
  absl::StatusOr<Recording> recording = Recording::Make(ctx(), fails);
  const absl::Status status = recording.ok() ? recording->Enqueue(ctx()) : recording.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  float* io = Upload(RandomFloats(kFloats, 2));
  ASSERT_OK(Smooth(ctx(), io));
  ASSERT_OK(device().Synchronize(ctx().stream()));
}

// As another thread does that lets go of a transform while a job records.
TEST_P(RecordingTest, MemoryThatIsFreedMeanwhileIsFreed) {
  if (!ctx().is_cuda()) GTEST_SKIP() << "the CPU records nothing";
  constexpr size_t kBytes = size_t{1} << 30;
  std::optional<Buffer> other = *device().Allocate(kBytes, ctx().stream());
  ASSERT_OK(device().Synchronize(ctx().stream()));
  const int64_t before = device().memory()->free_bytes;
  float* io = Upload(RandomFloats(kFloats, 3));
  const auto recording = Recording::Make(ctx(), [&](const ExecContext& c) {
    other.reset();
    return Smooth(c, io);
  });
  ASSERT_OK(recording) << recording.status();
  for (int i = 0; i < 2; ++i) ASSERT_OK(recording->Enqueue(ctx()));
  ASSERT_OK(device().Synchronize(ctx().stream()));
  EXPECT_OK(device().health());
  EXPECT_GT(device().memory()->free_bytes, before + static_cast<int64_t>(kBytes) / 2);
}

}  // namespace
}  // namespace intrawarp
