// SPDX-License-Identifier: Apache-2.0
// Products of short rows on CUDA: which rows are short, who makes them, and that every way to make them gives the same.
#include "engine/sparse/cuda/short_rows.h"

#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/sparse/cuda/plan.h"
#include "tests/bench/sparse_generators.h"
#include "tests/engine/sparse/reference.h"
#include "tests/engine/sparse/sparse_test.h"

namespace intrawarp::cuda::spgemm {
namespace {

// A row of a product: entries of A, multiplications, entries of C, and the class that makes it (kNone: not a short
// row).
struct RowCase {
  int entries_of_a, multiplications, entries;
  int of_class;
};
constexpr int kLong = -1;
constexpr RowCase kRowCases[] = {
    {1, 1, 1, kShortFew},       {1, 32, 32, kShortFew},     {1, 33, 33, kShortFew},     {32, 32, 1, kShortFew},
    {33, 33, 1, kShortWarp},    {8, 32, 4, kShortFew},      {2, 64, 33, kShortFew},     {32, 64, 64, kShortFew},
    {32, 64, 2, kShortFew},     {1, 65, 65, kShortWarp},    {64, 64, 64, kShortWarp},   {4, 256, 256, kShortWarp},
    {4, 256, 64, kShortWarp},   {16, 256, 100, kShortWarp}, {256, 256, 3, kShortWarp},  {4, 512, 512, kShortBlock},
    {8, 512, 300, kShortBlock}, {512, 512, 5, kShortBlock}, {16, 257, 90, kShortBlock}, {513, 513, 5, kLong},
    {4, 513, 400, kLong},       {2, 2200, 2049, kLong},     {2000, 2000, 7, kLong},     {3, 30, 10, kShortFew},
    {5, 25, 13, kShortFew}};

struct Operands {
  HostCsr<double> a, b;
};

// Operands with these rows, of which each is followed by empty ones, so that rows are short on average. The entries of
// a row of C are far apart.
Operands MakeOperands(const std::vector<RowCase>& cases) {
  constexpr int kEmptyRows = 100, kEmptyRowsOfB = 1000, kStride = 1000;
  Operands o;
  o.b.columns = kStride * 2100;
  for (const RowCase& row : cases) {
    for (int i = 0; i < row.entries_of_a; ++i) {
      o.a.column_indices.push_back(o.b.rows);
      o.a.values.push_back(1 + i % 3);
      const int length = row.multiplications / row.entries_of_a + (i < row.multiplications % row.entries_of_a);
      std::vector<int32_t> columns;
      for (int j = 0; j < length; ++j) columns.push_back((i * length + j) % row.entries * kStride + row.entries % 7);
      std::sort(columns.begin(), columns.end());
      for (int32_t c : columns) {
        o.b.column_indices.push_back(c);
        o.b.values.push_back(static_cast<double>(1 + c % 5) - (i % 4 == 3 ? 4 : 0));
      }
      ++o.b.rows;
      o.b.row_offsets.push_back(o.b.entries());
    }
    for (int r = 0; r <= kEmptyRows; ++r) o.a.row_offsets.push_back(o.a.entries());
    o.a.rows += 1 + kEmptyRows;
    o.b.rows += kEmptyRowsOfB;
    o.b.row_offsets.insert(o.b.row_offsets.end(), kEmptyRowsOfB, o.b.entries());
  }
  o.a.columns = o.b.rows;
  return o;
}

std::vector<RowCase> ShortCases() {
  std::vector<RowCase> cases(std::begin(kRowCases), std::end(kRowCases));
  std::erase_if(cases, [](const RowCase& row) { return row.of_class == kLong; });
  return cases;
}

template <typename T>
HostCsr<T> Reference(const HostCsr<T>& a, const HostCsr<T>& b, Semiring semiring) {
  return OrderedProduct(a, b, semiring, T{1}, [](int32_t, int32_t) { return true; });
}

class ShortRowsTest : public SparseTest {
 protected:
  void SetUp() override {
    if (!ctx().is_cuda()) GTEST_SKIP() << "the CPU has no classes of rows";
  }
  // The product planned and executed at once, and twice by a plan, in exactly the workspace of its estimate.
  template <typename T>
  void ExpectAllWays(const HostCsr<T>& a, const HostCsr<T>& b, const HostCsr<T>& expected,
                     const MultiplyOptions& options) {
    const CsrMatrix on_device_a = Put(a), on_device_b = Put(b);
    const auto estimate = intrawarp::EstimateMultiply(ctx(), on_device_a.view(), on_device_b.view(), options);
    ASSERT_OK(estimate) << estimate.status();
    auto workspace = OwnedContext::Create(device(), estimate->workspace_bytes);
    ASSERT_OK(workspace);
    const ExecContext own = workspace->context();
    const auto once = Multiply(own, on_device_a.view(), on_device_b.view(), options);
    ASSERT_OK(once) << once.status();
    ASSERT_EQ(*once->template Download<T>(device(), own.stream()), expected);
    const auto plan = intrawarp::PlanMultiply(own, on_device_a.view(), on_device_b.view(), options);
    ASSERT_OK(plan) << plan.status();
    EXPECT_LE(plan->bytes(), estimate->plan_bytes);
    ASSERT_OK(device().Synchronize(own.stream()));
    const ConstPatternView c = plan->pattern();
    ASSERT_EQ(Download(c.row_offsets, c.rows + 1), expected.row_offsets);
    ASSERT_EQ(Download(c.column_indices, c.entries), expected.column_indices);
    for (int round = 0; round < 2; ++round) {
      T* const values = Poisoned<T>(c.entries);
      ASSERT_OK(ExecuteMultiply(own, *plan, on_device_a.view(), on_device_b.view(), values));
      ASSERT_OK(device().Synchronize(own.stream()));
      ASSERT_EQ(Download(values, c.entries), expected.values);
    }
  }
  // The rows of each class in a plan.
  RowBins BinsOf(const HostCsr<double>& a, const HostCsr<double>& b) {
    const CsrMatrix on_device_a = Put(a), on_device_b = Put(b);
    auto plan = intrawarp::PlanMultiply(ctx(), on_device_a.view(), on_device_b.view(), Options<double>());
    EXPECT_OK(plan) << plan.status();
    RowBins bins;
    if (!plan.ok()) return bins;
    const RowBins& planned = static_cast<const Plan&>(plan->device_plan()).row_bins;
    bins.lengths = planned.lengths;
    bins.tiny_rows = planned.tiny_rows;
    return bins;
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(ShortRowsTest);

TEST_P(ShortRowsTest, RowsGoToTheClassOfTheirSize) {
  for (bool with_long : {false, true}) {
    SCOPED_TRACE(with_long);
    const std::vector<RowCase> cases =
        with_long ? std::vector<RowCase>(std::begin(kRowCases), std::end(kRowCases)) : ShortCases();
    const Operands o = MakeOperands(cases);
    ASSERT_TRUE(ShortRowsAreLikely(o.a.view(), o.b.view(), Options<double>()));
    const RowBins bins = BinsOf(o.a, o.b);
    unsigned others = 0;
    for (int c = 0; c < kValueClasses; ++c) {
      if (c < kShortFew || c > kShortBlock) others += bins.lengths[c];
    }
    for (int of_class : {kShortFew, kShortWarp, kShortBlock}) {
      EXPECT_EQ(bins.lengths[of_class],
                std::count_if(cases.begin(), cases.end(), [&](const RowCase& r) { return r.of_class == of_class; }))
          << of_class;
    }
    EXPECT_EQ(others, std::count_if(cases.begin(), cases.end(), [](const RowCase& r) { return r.of_class == kLong; }));
    EXPECT_EQ(bins.tiny_rows, 0u);
  }
}

// Small integers, so that every order of a sum gives the same bits.
TEST_P(ShortRowsTest, AllWaysGiveTheReference) {
  for (bool with_long : {false, true}) {
    const Operands o =
        MakeOperands(with_long ? std::vector<RowCase>(std::begin(kRowCases), std::end(kRowCases)) : ShortCases());
    const auto fa = CastValues<float>(o.a), fb = CastValues<float>(o.b);
    for (Semiring semiring : {Semiring::kPlusTimes, Semiring::kOrAnd, Semiring::kMinPlus}) {
      SCOPED_TRACE(absl::StrCat("with long rows ", with_long, ", semiring ", static_cast<int>(semiring)));
      ExpectAllWays(o.a, o.b, Reference(o.a, o.b, semiring), Options<double>(semiring));
      ExpectAllWays(fa, fb, Reference(fa, fb, semiring), Options<float>(semiring));
    }
    MultiplyOptions options = Options<double>();
    options.alpha = -3;
    HostCsr<double> scaled = Reference(o.a, o.b, Semiring::kPlusTimes);
    for (double& v : scaled.values) v *= -3;
    ExpectAllWays(o.a, o.b, scaled, options);
  }
}

// A warp adds by ascending k, so that a loop of fma gives the same bits.
TEST_P(ShortRowsTest, SumsAreInOrder) {
  std::vector<RowCase> cases = ShortCases();
  std::erase_if(cases, [](const RowCase& row) { return row.of_class == kShortBlock; });
  const Operands o = MakeOperands(cases);
  auto fa = CastValues<float>(o.a), fb = CastValues<float>(o.b);
  fa.values = RandomFloats(fa.values.size(), 3, -1, 1);
  fb.values = RandomFloats(fb.values.size(), 4, -1, 1);
  ExpectAllWays(fa, fb, Reference(fa, fb, Semiring::kPlusTimes), Options<float>());
}

// The sums of a block have another order, which is fixed, too.
TEST_P(ShortRowsTest, TheBitsAreTheSameInEveryRun) {
  const Operands o = MakeOperands(ShortCases());
  auto fa = CastValues<float>(o.a), fb = CastValues<float>(o.b);
  fa.values = RandomFloats(fa.values.size(), 5, -1, 1);
  fb.values = RandomFloats(fb.values.size(), 6, -1, 1);
  const CsrMatrix a = Put(fa), b = Put(fb);
  const auto first = Multiply(ctx(), a.view(), b.view(), Options<float>());
  ASSERT_OK(first) << first.status();
  const HostCsr<float> product = *first->Download<float>(device(), ctx().stream());
  for (int run = 0; run < 5; ++run) {
    SCOPED_TRACE(run);
    ExpectAllWays(fa, fb, product, Options<float>());
  }
}

TEST_P(ShortRowsTest, AMaskAndAnAddendFollow) {
  const Operands o = MakeOperands(ShortCases());
  const CsrMatrix a = Put(o.a), b = Put(o.b);
  const HostCsr<double> whole = Reference(o.a, o.b, Semiring::kPlusTimes);
  const CsrMatrix addend = Put(whole);
  MultiplyOptions options = Options<double>();
  options.mask = addend.view();
  options.addend = addend.view();
  options.beta = 2;
  const auto c = Multiply(ctx(), a.view(), b.view(), options);
  ASSERT_OK(c) << c.status();
  HostCsr<double> expected = whole;
  for (double& v : expected.values) v *= 3;
  EXPECT_EQ(*c->Download<double>(device(), ctx().stream()), expected);
}

// With so many rows threads merge the tiny ones: by themselves, and beside short and long ones.
TEST_P(ShortRowsTest, ManyRows) {
  const HostCsr<double> grid = Laplace2d(370, 1);
  const RowBins of_grid = BinsOf(grid, grid);
  EXPECT_EQ(of_grid.tiny_rows, static_cast<unsigned>(grid.rows));
  EXPECT_EQ(of_grid.lengths, (std::array<unsigned, kValueClasses>{}));
  for (HostCsr<double> m : {grid, RMat(17, 300000, .57, .19, .19, 2)}) {
    for (size_t i = 0; i < m.values.size(); ++i) m.values[i] = static_cast<double>(i % 7) - 2;
    const auto f = CastValues<float>(m);
    ExpectAllWays(f, f, Reference(f, f, Semiring::kPlusTimes), Options<float>());
  }
  const HostCsr<double> graph = RMat(17, 300000, .57, .19, .19, 2);
  const RowBins of_graph = BinsOf(graph, graph);
  EXPECT_GT(of_graph.tiny_rows, 0u);
  EXPECT_GT(of_graph.lengths[kShortWarp], 0u);
  EXPECT_GT(of_graph.lengths[kShortBlock], 0u);
}

TEST_P(ShortRowsTest, RowsThatOverlapInEveryWay) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 engine(seed);
    const int32_t rows = 1 + engine() % 700, inner = 1 + engine() % 300, columns = 1 + engine() % 900;
    const auto a = RandomMatrix(rows, inner, 4.0 / (4 + inner), seed + 100, true);
    auto b = RandomMatrix(inner, columns, 5.0 / (5 + columns), seed + 200, true);
    for (int32_t& c : b.column_indices) c *= 100;
    b.columns = 100000;
    ExpectAllWays(a, b, Reference(a, b, Semiring::kPlusTimes), Options<double>());
  }
}

}  // namespace
}  // namespace intrawarp::cuda::spgemm
