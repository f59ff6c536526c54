// SPDX-License-Identifier: Apache-2.0
// Products that are cancelled. A product on CUDA is one sequence of kernels and passes no checkpoint.
#include <memory>

#include "engine/sparse/multiply.h"
#include "tests/engine/device_test.h"
#include "tests/engine/sparse/reference.h"

namespace intrawarp {
namespace {

class MultiplyCancelTest : public testing::Test {
 protected:
  // A matrix of many blocks of rows, the last of which is one row.
  static HostCsr<float> Matrix() {
    HostCsr<float> m = CastValues<float>(RandomMatrix(3000, 3000, 0.01, 1));
    m.row_offsets.back() += 3000 - (m.row_offsets[3000] - m.row_offsets[2999]);
    m.column_indices.resize(m.row_offsets[2999]);
    for (int32_t c = 0; c < 3000; ++c) m.column_indices.push_back(c);
    m.values.resize(m.column_indices.size(), 2.0f);
    return m;
  }
  // The product, cancelled at the checkpoint after `continued` ones.
  absl::StatusOr<HostCsr<float>> Run(int continued, int* asked) {
    const HostCsr<float> m = Matrix();
    EXPECT_OK(ValidateCsr(m));
    *asked = 0;
    const ExecContext ctx = owned_->context(
        [&](const Progress&) { return (*asked)++ < continued ? Decision::kContinue : Decision::kCancel; });
    auto c = Multiply(ctx, m.view(), m.view(), {});
    if (!c.ok()) return c.status();
    return c->Download<float>(*device_, ctx.stream());
  }

  std::unique_ptr<Device> device_ = *OpenDevice("cpu");
  absl::StatusOr<OwnedContext> owned_ = OwnedContext::Create(*device_, 0);
};

TEST_F(MultiplyCancelTest, EndsAtTheNextCheckpointOfItsThread) {
  int asked = 0;
  const auto whole = Run(1 << 30, &asked);
  ASSERT_OK(whole);
  // How many blocks the thread takes depends on the other threads. It copies B twice, for the pattern and for the
  // values, and takes at least one block of each.
  EXPECT_GE(asked, 4);
  for (int continued : {0, 1, 2, 3}) {
    const auto c = Run(continued, &asked);
    EXPECT_EQ(c.status().code(), absl::StatusCode::kCancelled) << continued;
    EXPECT_GT(asked, continued);
  }
  // A cancelled product leaves nothing behind: the next one is whole again.
  const auto again = Run(1 << 30, &asked);
  ASSERT_OK(again);
  EXPECT_TRUE(*again == *whole);
}

}  // namespace
}  // namespace intrawarp
