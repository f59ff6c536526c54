// SPDX-License-Identifier: Apache-2.0
#include "engine/device/branch.h"

#include <vector>

#include "engine/base/status_macros.h"
#include "engine/device/recording.h"
#include "engine/transform/vector_field.h"
#include "tests/engine/device_test.h"

namespace intrawarp {
namespace {

constexpr Int3 kSize{21, 18, 7};
constexpr size_t kFloats = size_t{3} * 21 * 18 * 7;

class BranchTest : public DeviceTest {
 protected:
  static absl::Status Smooth(const ExecContext& ctx, const float* from, float* to) {
    return SmoothVectorField(ctx, from, kSize, {1, 1, 1}, to);
  }
  // a = smooth(input), b = smooth(a) beside c = smooth(a), and last `out` = smooth(b) and d = smooth(c).
  static absl::Status Diamond(const ExecContext& ctx, const Branch& branch, const float* input,
                              const std::vector<float*>& v) {
    INTRAWARP_RETURN_IF_ERROR(Smooth(ctx, input, v[0]));
    {
      ArenaScope scope(ctx.arena());
      INTRAWARP_ASSIGN_OR_RETURN(const ExecContext beside, branch.Fork(ctx));
      INTRAWARP_RETURN_IF_ERROR(Smooth(beside, v[0], v[2]));
      // The workspace of the smoothing beside stays its own.
      INTRAWARP_RETURN_IF_ERROR(ctx.arena().AllocateBytes(size_t{1} << 20).status());
      INTRAWARP_RETURN_IF_ERROR(Smooth(ctx, v[0], v[1]));
      INTRAWARP_RETURN_IF_ERROR(branch.Join(ctx));
    }
    INTRAWARP_RETURN_IF_ERROR(Smooth(ctx, v[1], v[3]));
    return Smooth(ctx, v[2], v[4]);
  }
  std::vector<float*> Outputs() {
    std::vector<float*> outputs(5);
    for (float*& output : outputs) output = Poisoned<float>(kFloats);
    return outputs;
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(BranchTest);

TEST_P(BranchTest, RecordedOrNotTheResultIsTheSame) {
  const float* input = Upload(RandomFloats(kFloats, 1, -1, 1));
  const absl::StatusOr<Branch> branch = Branch::Create(ctx());
  ASSERT_OK(branch) << branch.status();
  const std::vector<float*> direct = Outputs(), recorded = Outputs();
  ASSERT_OK(Diamond(ctx(), *branch, input, direct));
  const auto recording =
      Recording::Make(ctx(), [&](const ExecContext& c) { return Diamond(c, *branch, input, recorded); });
  ASSERT_OK(recording) << recording.status();
  for (int i = 0; i < 20; ++i) ASSERT_OK(recording->Enqueue(ctx()));
  for (size_t k = 0; k < direct.size(); ++k) {
    EXPECT_EQ(Download(direct[k], kFloats), Download(recorded[k], kFloats)) << k;
  }
}

TEST_P(BranchTest, RunsInItsRecordingAfterTheBranchIsGone) {
  float* input = Upload(RandomFloats(kFloats, 2, -1, 1));
  const std::vector<float*> direct = Outputs(), recorded = Outputs();
  std::optional<Branch> branch = *Branch::Create(ctx());
  ASSERT_OK(Diamond(ctx(), *branch, input, direct));
  const auto recording =
      Recording::Make(ctx(), [&](const ExecContext& c) { return Diamond(c, *branch, input, recorded); });
  ASSERT_OK(recording) << recording.status();
  if (ctx().is_cuda()) branch.reset();
  ASSERT_OK(recording->Enqueue(ctx()));
  EXPECT_EQ(Download(direct[4], kFloats), Download(recorded[4], kFloats));
}

}  // namespace
}  // namespace intrawarp
