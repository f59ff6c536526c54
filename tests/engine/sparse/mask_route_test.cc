// SPDX-License-Identifier: Apache-2.0
// Which way a product under a mask goes on CUDA, and that both ways give the same.
#include "engine/sparse/cuda/mask_route.h"

#include <string>
#include <vector>

#include "engine/sparse/cuda/masked.h"
#include "engine/sparse/cuda/plan.h"
#include "engine/sparse/cuda/row_classes.h"
#include "engine/sparse/cuda/tiles.h"
#include "tests/bench/sparse_generators.h"
#include "tests/engine/sparse/reference.h"
#include "tests/engine/sparse/sparse_test.h"

namespace intrawarp::cuda::spgemm {
namespace {

int64_t RunsOf(const HostCsr<double>& m) {
  int64_t runs = 0;
  for (int32_t r = 0; r < m.rows; ++r) {
    for (int64_t i = m.row_offsets[r]; i < m.row_offsets[r + 1]; ++i) {
      runs += i == m.row_offsets[r] || m.column_indices[i] / 8 != m.column_indices[i - 1] / 8;
    }
  }
  return runs;
}

// The work of A A under the mask A, counted as mask_route.h defines it.
MaskedWork WorkOf(const HostCsr<double>& a) {
  MaskedWork w;
  const unsigned tiny = RowLimitsOf(a.view()).tiny_multiplications;
  for (int32_t r = 0; r < a.rows; ++r) {
    const int64_t entries = a.row_offsets[r + 1] - a.row_offsets[r];
    const int64_t most = entries >= kHeavyEntries ? kBlockPiece : kWarpPiece, pieces = (entries + most - 1) / most;
    int64_t multiplications = 0;
    for (int64_t i = a.row_offsets[r]; i < a.row_offsets[r + 1]; ++i) {
      const int32_t k = a.column_indices[i];
      multiplications += a.row_offsets[k + 1] - a.row_offsets[k];
    }
    w.multiplications += multiplications;
    if (multiplications <= tiny && entries <= kTinyEntries) w.tiny_multiplications += multiplications;
    w.visits += entries * pieces;
    w.pieces += pieces;
  }
  w.mask_entries = a.entries();
  w.tiles = TilesArePossible(a.view(), a.view(), {}) && RunsAllowTiles(a.entries(), RunsOf(a));
  return w;
}

// The matrices whose times the model is fitted to, each with the way that was measured to be faster.
TEST(MaskRouteModelTest, ChoosesTheFasterWayOfTheMeasuredMatrices) {
  struct Case {
    const char* name;
    MaskRoute route;
  };
  for (const Case& c : {Case{"fem27x3_25", MaskRoute::kWhole}, Case{"fem27x6_18", MaskRoute::kWhole},
                        Case{"band_9506", MaskRoute::kWhole}, Case{"lap2d_725", MaskRoute::kWhole},
                        Case{"stencil27_64", MaskRoute::kMasked}, Case{"cage_130k", MaskRoute::kMasked},
                        Case{"rmat_500k", MaskRoute::kMasked}}) {
    const MaskedWork w = WorkOf(*MatrixByName(c.name, 1));
    EXPECT_EQ(ChooseMaskRoute(w, 0), c.route)
        << c.name << ": whole " << WholePicoseconds(w) * 1e-9 << " ms, masked " << MaskedPicoseconds(w) * 1e-9 << " ms";
  }
}

TEST(MaskRouteModelTest, MemoryOutOfProportionIsNotTaken) {
  MaskedWork w = {1'000'000'000, 1'000'000'000, 1'000'000'000, 1'000'000, 1'000'000, false};
  EXPECT_EQ(ChooseMaskRoute(w, kMostWholeBytes), MaskRoute::kWhole);
  EXPECT_EQ(ChooseMaskRoute(w, kMostWholeBytes + 1), MaskRoute::kMasked);
  w.multiplications = w.tiny_multiplications = 0;
  EXPECT_EQ(ChooseMaskRoute(w, 0), MaskRoute::kMasked);
}

// A few entries of the mask under 4.9e9 products, and a mask of so many pieces that searches are more than products.
TEST(MaskRouteModelTest, CountsBeyond32BitsDecide) {
  const MaskedWork few = {4'900'000'000, 0, 70'000, 70'000, 70'000, true};
  EXPECT_EQ(ChooseMaskRoute(few, 0), MaskRoute::kMasked);
  const MaskedWork many = {4'900'000'000, 0, 5'000'000'000'000, 1'000'000'000, 1'000'000'000, false};
  EXPECT_EQ(ChooseMaskRoute(many, 0), MaskRoute::kWhole);
}

class MaskRouteTest : public SparseTest {
 protected:
  void SetUp() override {
    if (!ctx().is_cuda()) GTEST_SKIP() << "the CPU is GraphBLAS";
  }
  // A A under the mask A, in exactly the workspace of the estimate; `went` becomes the way that it went.
  HostCsr<float> Square(const HostCsr<float>& host, MaskRoute route, MaskRoute* went) {
    const CsrMatrix a = Put(host);
    MultiplyOptions options = Options<float>();
    options.mask = a.view();
    options.mask_route = route;
    const auto estimate = intrawarp::EstimateMultiply(ctx(), a.view(), a.view(), options);
    EXPECT_OK(estimate) << estimate.status();
    if (!estimate.ok()) return {};
    auto workspace = OwnedContext::Create(device(), estimate->workspace_bytes);
    EXPECT_OK(workspace);
    const ExecContext own = workspace->context();
    const auto plan = intrawarp::PlanMultiply(own, a.view(), a.view(), options);
    EXPECT_OK(plan) << plan.status();
    if (!plan.ok()) return {};
    EXPECT_LE(plan->bytes(), estimate->plan_bytes);
    *went = static_cast<const Plan&>(plan->device_plan()).selection.empty() ? MaskRoute::kMasked : MaskRoute::kWhole;
    const auto c = Multiply(own, a.view(), a.view(), options);
    EXPECT_OK(c) << c.status();
    return c.ok() ? *c->Download<float>(device(), own.stream()) : HostCsr<float>();
  }
  // Small integers, so that every order of a sum gives the same bits.
  void ExpectWays(HostCsr<double> m, MaskRoute chosen) {
    for (int64_t i = 0; i < m.entries(); ++i) m.values[i] = static_cast<double>(i % 5) - 1;
    const HostCsr<float> a = CastValues<float>(m);
    MaskRoute went = MaskRoute::kAuto;
    const HostCsr<float> masked = Square(a, MaskRoute::kMasked, &went);
    EXPECT_EQ(went, MaskRoute::kMasked);
    EXPECT_GT(masked.entries(), 0);
    EXPECT_TRUE(Square(a, MaskRoute::kWhole, &went) == masked);
    EXPECT_EQ(went, MaskRoute::kWhole);
    EXPECT_TRUE(Square(a, MaskRoute::kAuto, &went) == masked);
    EXPECT_EQ(went, chosen);
    EXPECT_EQ(ChooseMaskRoute(WorkOf(m), 0), chosen);
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(MaskRouteTest);

TEST_P(MaskRouteTest, ABandMakesTheWholeProduct) { ExpectWays(*MatrixByName("band_9506", 1), MaskRoute::kWhole); }

TEST_P(MaskRouteTest, AGridOfFivePointsMakesTheWholeProduct) { ExpectWays(Laplace2d(725, 1), MaskRoute::kWhole); }

TEST_P(MaskRouteTest, APowerLawGraphGoesByItsMask) {
  ExpectWays(RMat(16, 300000, .57, .19, .19, 3), MaskRoute::kMasked);
}

// Without multiplications there is nothing to choose, and either way gives an empty matrix.
TEST_P(MaskRouteTest, EmptyMatrices) {
  HostCsr<float> none = {40, 40, std::vector<int64_t>(41, 0), {}, {}};
  MaskRoute went = MaskRoute::kAuto;
  EXPECT_EQ(Square(none, MaskRoute::kAuto, &went), none);
  EXPECT_EQ(went, MaskRoute::kMasked);
  EXPECT_EQ(Square(none, MaskRoute::kWhole, &went), none);
  EXPECT_EQ(went, MaskRoute::kWhole);
}

}  // namespace
}  // namespace intrawarp::cuda::spgemm
