// SPDX-License-Identifier: Apache-2.0
#include "engine/sparse/multiply.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/sparse/multiply_kernels.h"
#include "tests/bench/sparse_generators.h"
#include "tests/engine/sparse/counting_device.h"
#include "tests/engine/sparse/reference.h"
#include "tests/engine/sparse/sparse_test.h"

namespace intrawarp {
namespace {

using testing::StartsWith;

class MultiplyTest : public SparseTest {
 protected:
  template <typename T>
  absl::StatusOr<HostCsr<T>> Product(const HostCsr<T>& a, const HostCsr<T>& b, const MultiplyOptions& options) {
    const CsrMatrix on_device_a = Put(a), on_device_b = Put(b);
    auto c = Multiply(ctx(), on_device_a.view(), on_device_b.view(), options);
    if (!c.ok()) return c.status();
    return c->template Download<T>(device(), ctx().stream());
  }
  // The product of T's own precision.
  template <typename T>
  HostCsr<T> Product(const HostCsr<T>& a, const HostCsr<T>& b) {
    auto c = Product(a, b, Options<T>());
    EXPECT_OK(c) << c.status();
    return c.ok() ? *c : HostCsr<T>();
  }
  template <typename T>
  MultiplyOptions Options() {
    MultiplyOptions options;
    options.precision = sizeof(T) == 4 ? MultiplyPrecision::kFp32 : MultiplyPrecision::kFp64;
    options.path = path_;
    return options;
  }
  // The paths that differ on this device.
  std::vector<MultiplyPath> Paths() {
    if (!ctx().is_cuda()) return {MultiplyPath::kAuto};
    return {MultiplyPath::kAuto,      MultiplyPath::kScalar,   MultiplyPath::kTiles,   MultiplyPath::kReusePlan,
            MultiplyPath::kShortRows, MultiplyPath::kLongRows, MultiplyPath::kBitmaps, MultiplyPath::kTables};
  }

  MultiplyPath path_ = MultiplyPath::kAuto;
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(MultiplyTest);

// Pattern exactly, values within (2u + u^2 + g_k) |A||B| (the header's bound).
template <typename T>
void ExpectProduct(const HostCsr<T>& c, const HostCsr<T>& a, const HostCsr<T>& b, double u = 0,
                   double u_acc = std::numeric_limits<T>::epsilon() / 2) {
  ASSERT_OK(ValidateCsr(c));
  ASSERT_EQ(c.rows, a.rows);
  ASSERT_EQ(c.columns, b.columns);
  for (int32_t i = 0; i < c.rows; ++i) {
    const ReferenceRow row = ReferenceProductRow(a, b, i);
    ASSERT_EQ(c.row_offsets[i + 1] - c.row_offsets[i], static_cast<int64_t>(row.size())) << "row " << i;
    int64_t p = c.row_offsets[i];
    for (const auto& [column, e] : row) {
      ASSERT_EQ(c.column_indices[p], column) << "row " << i;
      const double k = e.terms * u_acc, bound = (2 * u + u * u + k / (1 - k)) * e.magnitude;
      // The reference rounds, too.
      const double slack = 2 * e.terms * std::numeric_limits<double>::epsilon() * e.magnitude;
      ASSERT_NEAR(c.values[p], e.value, bound + slack) << "row " << i << " column " << column;
      ++p;
    }
  }
}

TEST_P(MultiplyTest, RandomRectangularMatrices) {
  uint32_t seed = 0;
  for (int rows : {1, 7, 33, 200}) {
    for (int inner : {1, 31, 64}) {
      for (int columns : {1, 32, 129, 700}) {
        for (double density : {0.02, 0.2, 1.0}) {
          SCOPED_TRACE(absl::StrCat(rows, "x", inner, "x", columns, " ", density));
          const auto a = RandomMatrix(rows, inner, density, ++seed), b = RandomMatrix(inner, columns, density, ++seed);
          const auto fa = CastValues<float>(a), fb = CastValues<float>(b);
          for (MultiplyPath path : Paths()) {
            path_ = path;
            ExpectProduct(Product(a, b), a, b);
            ExpectProduct(Product(fa, fb), fa, fb);
          }
        }
      }
    }
  }
}

// Rows of A with products from entries that are further apart than the indices of a reuse plan reach.
TEST_P(MultiplyTest, ProductsFarApartInA) {
  constexpr int32_t kInner = 70000, kRows = 3;
  HostCsr<float> a{kRows, kInner, {0}, {}, {}}, b{kInner, 2, {0}, {}, {}};
  for (int32_t r = 0; r < kRows; ++r) {
    for (int32_t k = 0; k < kInner; ++k) {
      a.column_indices.push_back(k);
      a.values.push_back(static_cast<float>(1 + (r + k) % 5));
    }
    a.row_offsets.push_back(a.entries());
  }
  for (int32_t k = 0; k < kInner; ++k) {
    if (k == 0 || k == kInner - 1) {
      for (int32_t j : {0, 1}) {
        b.column_indices.push_back(j);
        b.values.push_back(static_cast<float>(2 + j));
      }
    }
    b.row_offsets.push_back(b.entries());
  }
  for (MultiplyPath path : Paths()) {
    path_ = path;
    ExpectProduct(Product(a, b), a, b, 0, 0);
  }
}

// A plan for many executions gives the same result as any other plan, for several sets of values.
TEST_P(MultiplyTest, PlansForManyExecutions) {
  for (uint32_t seed = 0; seed < 6; ++seed) {
    // Entries of C have from one product to hundreds.
    const int32_t inner = seed < 3 ? 60 : 900, columns = seed % 3 == 0 ? 2000 : 40;
    auto a = CastValues<float>(RandomMatrix(150, inner, 0.3, seed)),
         b = CastValues<float>(RandomMatrix(inner, columns, 0.2, seed + 50));
    const CsrMatrix on_device_a = Put(a), on_device_b = Put(b);
    MultiplyOptions options = Options<float>();
    options.many_executions = true;
    const auto plan = PlanMultiply(ctx(), on_device_a.view(), on_device_b.view(), options);
    ASSERT_OK(plan) << plan.status();
    for (int round = 0; round < 2; ++round) {
      for (float& v : a.values) v = v * 1.5f - 0.25f;
      const CsrMatrix new_a = Put(a);
      const int64_t entries = plan->pattern().entries;
      float* const values = Poisoned<float>(entries);
      ASSERT_OK(ExecuteMultiply(ctx(), *plan, new_a.view(), on_device_b.view(), values));
      HostCsr<float> c = Product(a, b);
      ASSERT_EQ(c.entries(), entries);
      c.values = Download(values, entries);
      ExpectProduct(c, a, b);
      float* const again = Poisoned<float>(entries);
      ASSERT_OK(ExecuteMultiply(ctx(), *plan, new_a.view(), on_device_b.view(), again));
      EXPECT_EQ(Download(again, entries), c.values);
    }
  }
}

// A plan gives new values the bits that a plan of their own gives, and its results share a pattern that outlives it.
TEST_P(MultiplyTest, APlanServesNewValuesBitForBit) {
  auto a = CastValues<float>(RandomMatrix(150, 300, 0.1, 71)), b = CastValues<float>(RandomMatrix(300, 90, 0.2, 72));
  for (const auto precision : {MultiplyPrecision::kFp32, MultiplyPrecision::kTf32}) {
    MultiplyOptions options;
    options.precision = precision;
    const CsrMatrix on_device_a = Put(a), on_device_b = Put(b);
    absl::StatusOr<MultiplyPlan> plan = PlanMultiply(ctx(), on_device_a.view(), on_device_b.view(), options);
    ASSERT_OK(plan) << plan.status();
    const auto product = [&](const MultiplyPlan& by, const CsrMatrix& left) {
      auto values = device().Allocate(by.pattern().entries * sizeof(float), ctx().stream());
      EXPECT_OK(values);
      EXPECT_OK(ExecuteMultiply(ctx(), by, left.view(), on_device_b.view(), values->as<void>()));
      return by.ResultWith(*std::move(values));
    };
    const CsrMatrix first = product(*plan, on_device_a);
    for (float& v : a.values) v = v * 1.5f - 0.25f;
    const CsrMatrix new_a = Put(a);
    const CsrMatrix second = product(*plan, new_a);
    const auto fresh = PlanMultiply(ctx(), new_a.view(), on_device_b.view(), options);
    ASSERT_OK(fresh) << fresh.status();
    const CsrMatrix expected = product(*fresh, new_a);
    EXPECT_EQ(first.pattern(), second.pattern());
    EXPECT_NE(first.pattern(), expected.pattern());
    plan = MultiplyPlan();
    EXPECT_EQ(*second.Download<float>(device(), ctx().stream()), *expected.Download<float>(device(), ctx().stream()));
  }
}

TEST_P(MultiplyTest, ManySmallMatrices) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 engine(seed);
    const auto size = [&] { return static_cast<int32_t>(engine() % 40); };
    const int32_t rows = size(), inner = size(), columns = size();
    const double density = (1 + engine() % 20) / 40.0;
    SCOPED_TRACE(absl::StrCat(seed, ": ", rows, "x", inner, "x", columns));
    const auto a = CastValues<float>(RandomMatrix(rows, inner, density, seed, true));
    const auto b = CastValues<float>(RandomMatrix(inner, columns, density, seed + 1000, true));
    ExpectProduct(Product(a, b), a, b, 0, 0);  // small integers: exact
  }
}

// Appends a matrix to a block-diagonal one.
void AppendBlock(const HostCsr<double>& block, HostCsr<float>& m) {
  const int64_t before = m.entries();
  for (int32_t c : block.column_indices) m.column_indices.push_back(m.columns + c);
  m.values.insert(m.values.end(), block.values.begin(), block.values.end());
  for (int32_t r = 1; r <= block.rows; ++r) m.row_offsets.push_back(before + block.row_offsets[r]);
  m.rows += block.rows;
  m.columns += block.columns;
}

// Products of small integers are exact, so that GraphBLAS, on the CPU, gives the same bits. A hundred products at a
// time are the blocks of one matrix, so that they lie across tiles and bitmaps in every way.
TEST_P(MultiplyTest, TenThousandSmallMatricesEachWayAreGraphBlass) {
  if (!ctx().is_cuda()) GTEST_SKIP() << "the CPU is GraphBLAS";
  OwnedContext cpu = *OwnedContext::Create(TestDevice("cpu"), 1);
  for (uint32_t batch = 0; batch < 100; ++batch) {
    std::mt19937 engine(batch);
    HostCsr<float> a, b;
    for (uint32_t i = 0; i < 100; ++i) {
      const auto size = [&] { return static_cast<int32_t>(1 + engine() % 40); };
      const int32_t rows = size(), inner = size(), columns = size();
      const double density = (1 + engine() % 20) / (engine() % 2 == 0 ? 20.0 : 60.0);
      AppendBlock(RandomMatrix(rows, inner, density, 2 * engine(), true), a);
      AppendBlock(RandomMatrix(inner, columns, density, 2 * engine() + 1, true), b);
    }
    const auto product = Multiply(cpu.context(), a.view(), b.view(), {});
    ASSERT_OK(product) << product.status();
    const HostCsr<float> expected = *product->Download<float>(TestDevice("cpu"), cpu.context().stream());
    for (MultiplyPath path : Paths()) {
      path_ = path;
      ASSERT_EQ(Product(a, b), expected) << "batch " << batch << ", path " << static_cast<int>(path);
    }
    for (MultiplyPrecision precision : {MultiplyPrecision::kFp16, MultiplyPrecision::kBf16, MultiplyPrecision::kTf32}) {
      MultiplyOptions options;
      options.precision = precision;
      options.path = batch % 2 == 0 ? MultiplyPath::kTiles : MultiplyPath::kAuto;
      const auto reduced = Product(a, b, options);
      ASSERT_OK(reduced) << reduced.status();
      ASSERT_EQ(*reduced, expected) << "batch " << batch << ", precision " << static_cast<int>(precision);
    }
    const auto da = CastValues<double>(a), db = CastValues<double>(b);
    path_ = batch % 2 == 0 ? MultiplyPath::kAuto : MultiplyPath::kTiles;
    ASSERT_EQ(CastValues<float>(Product(da, db)), expected) << "batch " << batch << ", float64";
    for (Semiring semiring : {Semiring::kOrAnd, Semiring::kMinPlus}) {
      MultiplyOptions options;
      options.semiring = semiring;
      const auto on_host = Multiply(cpu.context(), a.view(), b.view(), options);
      ASSERT_OK(on_host) << on_host.status();
      const auto c = Product(a, b, options);
      ASSERT_OK(c) << c.status();
      ASSERT_EQ(*c, *on_host->Download<float>(TestDevice("cpu"), cpu.context().stream()))
          << "batch " << batch << ", semiring " << static_cast<int>(semiring);
    }
  }
}

// A dense column. Times a dense row, it gives a dense matrix.
HostCsr<float> Column(int32_t rows) {
  HostCsr<float> m = {rows, 1, {0}, std::vector<int32_t>(rows), std::vector<float>(rows)};
  for (int32_t r = 0; r < rows; ++r) {
    m.values[r] = static_cast<float>(1 + r % 5);
    m.row_offsets.push_back(r + 1);
  }
  return m;
}

TEST_P(MultiplyTest, EstimatesCountBeyond32Bits) {
  constexpr int32_t kSize = 70000;
  const CsrMatrix column = Put(Column(kSize)), row = Put(Transposed(Column(kSize)));
  for (MultiplyPath path : Paths()) {
    path_ = path;
    const auto e = EstimateMultiply(ctx(), column.view(), row.view(), Options<float>());
    ASSERT_OK(e) << e.status();
    constexpr int64_t kEntries = int64_t{kSize} * kSize;
    EXPECT_EQ(e->multiplications, kEntries);
    EXPECT_EQ(e->max_entries, kEntries);
    EXPECT_EQ(e->value_bytes, 4 * kEntries);
    EXPECT_GE(e->plan_bytes, 4 * kEntries);
  }
}

// The same 4.9e9 multiplications with A transposed, under a mask, and beside an addend; no kernel makes them.
TEST_P(MultiplyTest, EstimatesOfEveryKindCountBeyond32Bits) {
  constexpr int32_t kSize = 70000;
  constexpr int64_t kEntries = int64_t{kSize} * kSize;
  const HostCsr<float> host_row = Transposed(Column(kSize));
  const CsrMatrix column = Put(Column(kSize)), row = Put(host_row);
  HostCsr<float> host_diagonal = Column(kSize);
  host_diagonal.columns = kSize;
  for (int32_t r = 0; r < kSize; ++r) host_diagonal.column_indices[r] = r;
  const CsrMatrix diagonal = Put(host_diagonal);
  MultiplyOptions options = Options<float>();
  const auto estimate = [&](const CsrMatrix& a) {
    const auto e = EstimateMultiply(ctx(), a.view(), row.view(), options);
    EXPECT_OK(e) << e.status();
    EXPECT_EQ(e->multiplications, kEntries);
    return *e;
  };
  options.transpose_a = true;
  EXPECT_EQ(estimate(row).max_entries, kEntries);
  options.transpose_a = false;
  options.addend = diagonal.view();
  EXPECT_GE(estimate(column).max_entries, kEntries);
  EXPECT_GE(estimate(column).plan_bytes, 4 * kEntries);
  options.addend.reset();
  options.mask = diagonal.view();
  EXPECT_EQ(estimate(column).max_entries, kSize);
  options.complement_mask = true;
  EXPECT_GE(estimate(column).max_entries, kEntries - kSize);
}

// Under a mask the same product has few entries, and it is right.
TEST_P(MultiplyTest, MoreThan2To32MultiplicationsUnderAMask) {
  if (!ctx().is_cuda()) GTEST_SKIP() << "takes too long";
  constexpr int32_t kSize = 70000;
  const HostCsr<float> host_column = Column(kSize);
  const CsrMatrix column = Put(host_column), row = Put(Transposed(host_column));
  HostCsr<float> host_mask = host_column, expected = host_column;
  host_mask.columns = expected.columns = kSize;
  for (int32_t r = 0; r < kSize; ++r) {
    const int32_t c = kSize - 1 - r;
    host_mask.column_indices[r] = expected.column_indices[r] = c;
    expected.values[r] = host_column.values[r] * host_column.values[c];
  }
  const CsrMatrix mask = Put(host_mask);
  MultiplyOptions options = Options<float>();
  options.mask = mask.view();
  const auto c = Multiply(ctx(), column.view(), row.view(), options);
  ASSERT_OK(c) << c.status();
  EXPECT_TRUE(*c->Download<float>(device(), ctx().stream()) == expected);
}

// 2^20 rows, each of which meets a row of B with 2^31 - 1 entries. The CPU reads only the offsets of B, CUDA its
// columns, too, which are not there.
TEST_P(MultiplyTest, EstimatesStopAtTheMostThatIsCounted) {
  if (ctx().is_cuda()) GTEST_SKIP() << "only for the CPU";
  const HostCsr<float> a = Column((1 << 20) + 4096);
  const int64_t offsets[] = {0, INT32_MAX};
  const ConstPatternView b = {1, INT32_MAX, INT32_MAX, offsets, nullptr};
  const auto e = EstimateMultiply(ctx(), a.view(), b, Options<float>());
  ASSERT_OK(e) << e.status();
  EXPECT_EQ(e->multiplications, MultiplyEstimate::kMostCounted);
  EXPECT_EQ(e->max_entries, MultiplyEstimate::kMostCounted);
  EXPECT_EQ(e->value_bytes, 4 * MultiplyEstimate::kMostCounted);
  EXPECT_GE(e->plan_bytes, 4 * MultiplyEstimate::kMostCounted);
  EXPECT_GE(e->workspace_bytes, 4 * MultiplyEstimate::kMostCounted);
}

TEST_P(MultiplyTest, MemoryForTooManyEntriesIsRefusedWithTheNumbers) {
  for (int64_t entries : {int64_t{1} << 61, int64_t{1} << 62}) {
    const absl::Status s = AllocateForEntries(ctx(), "values", entries, 8).status();
    EXPECT_EQ(s.code(), absl::StatusCode::kResourceExhausted) << s;
    EXPECT_THAT(std::string(s.message()),
                StartsWith(absl::StrCat("C has ", entries, " entries, whose values take 8 bytes each")));
  }
}

TEST_P(MultiplyTest, MoreThan2To31Entries) {
  if (std::getenv("INTRAWARP_TEST_BIG") == nullptr) GTEST_SKIP() << "INTRAWARP_TEST_BIG is not set: takes 40 GB";
  if (!ctx().is_cuda()) GTEST_SKIP() << "takes too long";
  constexpr int32_t kSize = 47000;
  const HostCsr<float> host_column = Column(kSize);
  const CsrMatrix column = Put(host_column), row = Put(Transposed(host_column));
  const auto estimate = EstimateMultiply(ctx(), column.view(), row.view(), Options<float>());
  ASSERT_OK(estimate) << estimate.status();
  auto workspace = OwnedContext::Create(device(), estimate->workspace_bytes);
  ASSERT_OK(workspace);
  const auto product = Multiply(workspace->context(), column.view(), row.view(), Options<float>());
  ASSERT_OK(product) << product.status();
  ASSERT_OK(device().Synchronize(workspace->context().stream()));
  const ConstCsrView c = product->view();
  ASSERT_EQ(c.entries, int64_t{kSize} * kSize);
  for (int32_t r : {0, 1, 23456, kSize - 2, kSize - 1}) {
    const int64_t begin = Download(c.row_offsets + r, 2)[0];
    ASSERT_EQ(begin, int64_t{kSize} * r);
    const std::vector<int32_t> columns = Download(c.column_indices + begin, kSize);
    const std::vector<float> values = Download(static_cast<const float*>(c.values) + begin, kSize);
    for (int32_t i = 0; i < kSize; ++i) {
      ASSERT_EQ(columns[i], i) << "row " << r;
      ASSERT_EQ(values[i], host_column.values[r] * host_column.values[i]) << "row " << r;
    }
  }
}

TEST_P(MultiplyTest, EmptyShapes) {
  const int sizes[] = {0, 3};
  for (int rows : sizes) {
    for (int inner : sizes) {
      for (int columns : sizes) {
        const auto a = RandomMatrix(rows, inner, 1, 1), b = RandomMatrix(inner, columns, 1, 2);
        ExpectProduct(Product(a, b), a, b);
      }
    }
  }
  const auto none = RandomMatrix(40, 40, 0, 1);
  EXPECT_EQ(Product(none, none), none);
}

// Rows of every length beside each other, one dense row, one dense column: every class of rows occurs.
TEST_P(MultiplyTest, RowsOfAllLengths) {
  constexpr int kSize = 3000;
  HostCoo coo = {kSize, kSize, {}, {}, {}};
  const auto add = [&](int r, int c) {
    coo.row_indices.push_back(r);
    coo.column_indices.push_back(c);
    coo.values.push_back(1 + (r * 7 + c * 3) % 5);
  };
  std::mt19937 engine(5);
  for (int r = 0; r < kSize; ++r) {
    const int length = r == 1234 ? kSize : r % 3 == 0 ? 0 : 1 << engine() % (r % 500 == 1 ? 11 : 5);
    for (int i = 0; i < length; ++i) add(r, length == kSize ? i : engine() % kSize);
    if (r % 2 == 0) add(r, 77);
  }
  const auto m = *CsrFromCoo<float>(coo);
  for (MultiplyPath path : Paths()) {
    path_ = path;
    ExpectProduct(Product(m, m), m, m, 0, 0);
  }
}

TEST_P(MultiplyTest, LongSparseRowsOfWideMatrices) {
  constexpr int kColumns = 3000000;
  std::mt19937 engine(6);
  HostCoo a = {5, 64, {}, {}, {}}, b = {64, kColumns, {}, {}, {}};
  for (int k = 0; k < 64; ++k) {
    for (int r : {0, 2, 3}) {
      if (r == 3 && k % 16 != 0) continue;
      a.row_indices.push_back(r), a.column_indices.push_back(k), a.values.push_back(1 + k % 3);
    }
    for (int i = 0; i < 700; ++i) {
      b.row_indices.push_back(k), b.column_indices.push_back(engine() % kColumns), b.values.push_back(1 + i % 7);
    }
    b.row_indices.push_back(k), b.column_indices.push_back(kColumns - 1), b.values.push_back(1);
    b.row_indices.push_back(k), b.column_indices.push_back(0), b.values.push_back(1);
  }
  const auto ma = *CsrFromCoo<float>(a), mb = *CsrFromCoo<float>(b);
  for (MultiplyPath path : Paths()) {
    path_ = path;
    ExpectProduct(Product(ma, mb), ma, mb, 0, 0);
    const auto da = CastValues<double>(ma), db = CastValues<double>(mb);
    ExpectProduct(Product(da, db), da, db, 0, 0);
  }
}

// Rows whose columns lie within some thousand to some ten thousand columns, with a few to thousands of entries; some
// rows are alike.
TEST_P(MultiplyTest, RowsOfMiddlingSpan) {
  std::mt19937 engine(13);
  for (int columns : {9000, 30000, 42000}) {
    SCOPED_TRACE(columns);
    HostCoo b = {300, columns, {}, {}, {}};
    for (int k = 0; k < 300; ++k) {
      const int start = static_cast<int>(engine() % columns), length = k % 50 == 7 ? 2000 : 1 + engine() % 40;
      for (int i = 0; i < length; ++i) {
        const bool near = engine() % 2 == 0;
        b.row_indices.push_back(k);
        b.column_indices.push_back(near ? (start + engine() % 60) % columns : engine() % columns);
        b.values.push_back(static_cast<int>(engine() % 9) - 4);
      }
    }
    HostCsr<float> a;
    a.columns = 300;
    for (int run = 0; a.rows < 150; ++run) {
      std::set<int32_t> pattern;
      for (unsigned i = 1u << engine() % 8; i > 0; --i) pattern.insert(engine() % 300);
      for (int r = 0; r < 1 + run % 4; ++r, ++a.rows) {
        a.column_indices.insert(a.column_indices.end(), pattern.begin(), pattern.end());
        a.row_offsets.push_back(a.entries());
      }
    }
    for (int64_t i = 0; i < a.entries(); ++i) a.values.push_back(static_cast<int>(engine() % 9) - 4);
    const auto mb = *CsrFromCoo<float>(b);
    for (MultiplyPath path : Paths()) {
      path_ = path;
      ExpectProduct(Product(a, mb), a, mb, 0, 0);
    }
  }
}

TEST_P(MultiplyTest, ShapesOfTheGenerators) {
  for (const HostCsr<double>& m : {Fem27(3, 5, 1), Fem27(1, 9, 2), Band(400, 61, 3), Laplace2d(37, 4),
                                   Cage(3000, 15, 60, 900, 5), RMat(11, 8000, .57, .19, .19, 6)}) {
    const auto f = CastValues<float>(m);
    for (MultiplyPath path : Paths()) {
      path_ = path;
      ExpectProduct(Product(m, m), m, m);
      ExpectProduct(Product(f, f), f, f);
    }
  }
}

// Unknowns of one node: runs of rows with one pattern, of every length, across the borders of tiles (8 rows) and of
// runs (64 rows), with rows between them that have another pattern or none.
TEST_P(MultiplyTest, RunsOfRowsWithOnePattern) {
  std::mt19937 engine(11);
  HostCsr<float> m;
  m.columns = 700;
  for (int run = 0; m.rows < 700; ++run) {
    const int32_t length = std::min<int32_t>(1 + run % 7 + (run % 13 == 12 ? 150 : 0), 700 - m.rows);
    std::set<int32_t> columns;
    for (unsigned i = engine() % 40; i > 0; --i) columns.insert(engine() % 700);
    for (int32_t r = 0; r < length; ++r) {
      m.column_indices.insert(m.column_indices.end(), columns.begin(), columns.end());
      m.row_offsets.push_back(m.entries());
    }
    m.rows += length;
  }
  for (int64_t i = 0; i < m.entries(); ++i) m.values.push_back(static_cast<int>(engine() % 9) - 4);
  for (MultiplyPath path : Paths()) {
    path_ = path;
    ExpectProduct(Product(m, m), m, m, 0, 0);
  }
}

TEST_P(MultiplyTest, EntriesThatCancelAndZerosStay) {
  const HostCsr<float> a = {2, 2, {0, 2, 3}, {0, 1, 0}, {1, -1, 0}}, b = {2, 1, {0, 1, 2}, {0, 0}, {3, 3}};
  EXPECT_EQ(Product(a, b), (HostCsr<float>{2, 1, {0, 1, 2}, {0, 0}, {0, 0}}));
}

TEST_P(MultiplyTest, NonFiniteValuesPropagateWhereTheyAre) {
  const float inf = INFINITY;
  const HostCsr<float> a = {3, 2, {0, 1, 2, 4}, {0, 1, 0, 1}, {1, 0, 1, 1}};
  const HostCsr<float> b = {2, 3, {0, 2, 4}, {0, 1, 0, 2}, {inf, 2, NAN, -inf}};
  for (MultiplyPath path : Paths()) {
    path_ = path;
    const HostCsr<float> c = Product(a, b);
    ASSERT_EQ(c.column_indices, (std::vector<int32_t>{0, 1, 0, 2, 0, 1, 2}));
    EXPECT_EQ(c.values[0], inf);
    EXPECT_EQ(c.values[1], 2);  // no padding times infinity
    EXPECT_TRUE(std::isnan(c.values[2]));
    EXPECT_TRUE(std::isnan(c.values[3]));  // 0 x -inf of two entries
    EXPECT_TRUE(std::isnan(c.values[4]));
    EXPECT_EQ(c.values[5], 2);
    EXPECT_EQ(c.values[6], -inf);
  }
}

TEST_P(MultiplyTest, IsBitIdenticalFromRunToRun) {
  const auto m = CastValues<float>(RMat(11, 20000, .57, .19, .19, 8));
  for (MultiplyPath path : Paths()) {
    path_ = path;
    const auto first = Product(m, m);
    for (int run = 0; run < 3; ++run) EXPECT_EQ(Product(m, m), first);
  }
}

TEST_P(MultiplyTest, OnePlanServesManyValues) {
  auto a = CastValues<float>(Cage(500, 9, 20, 100, 1)), b = CastValues<float>(RandomMatrix(500, 300, 0.05, 3));
  const CsrMatrix pattern_a = Put(a), pattern_b = Put(b);
  for (MultiplyPath path : Paths()) {
    path_ = path;
    const auto plan = PlanMultiply(ctx(), pattern_a.view(), pattern_b.view(), Options<float>());
    ASSERT_OK(plan) << plan.status();
    const ConstPatternView c = plan->pattern();
    for (uint32_t seed = 0; seed < 3; ++seed) {
      a.values = RandomFloats(a.values.size(), seed, -1, 1);
      b.values = RandomFloats(b.values.size(), seed + 10, -1, 1);
      const CsrMatrix on_device_a = Put(a), on_device_b = Put(b);
      float* values = Poisoned<float>(c.entries);
      ASSERT_OK(ExecuteMultiply(ctx(), *plan, on_device_a.view(), on_device_b.view(), values));
      const HostCsr<float> product = {c.rows, c.columns, Download(c.row_offsets, c.rows + 1),
                                      Download(c.column_indices, c.entries), Download(values, c.entries)};
      ExpectProduct(product, a, b);
    }
  }
}

// A plan of a square, with one matrix for both operands, executed with two.
TEST_P(MultiplyTest, PlanOfASquareServesTwoMatrices) {
  auto a = CastValues<float>(Fem27(2, 5, 1)), b = a;
  b.values = RandomFloats(b.values.size(), 7, -1, 1);
  const CsrMatrix on_device_a = Put(a), on_device_b = Put(b);
  for (MultiplyPath path : Paths()) {
    path_ = path;
    const auto plan = PlanMultiply(ctx(), on_device_a.view(), on_device_a.view(), Options<float>());
    ASSERT_OK(plan) << plan.status();
    const ConstPatternView c = plan->pattern();
    float* values = Poisoned<float>(c.entries);
    ASSERT_OK(ExecuteMultiply(ctx(), *plan, on_device_a.view(), on_device_b.view(), values));
    const HostCsr<float> product = {c.rows, c.columns, Download(c.row_offsets, c.rows + 1),
                                    Download(c.column_indices, c.entries), Download(values, c.entries)};
    ExpectProduct(product, a, b);
  }
}

TEST_P(MultiplyTest, EstimatesHold) {
  for (const HostCsr<double>& m :
       {Fem27(2, 5, 1), Laplace2d(30, 2), RMat(10, 9000, .57, .19, .19, 3), Band(300, 30, 4)}) {
    const CsrMatrix on_device = Put(m);
    for (MultiplyPath path : Paths()) {
      path_ = path;
      const auto estimate = EstimateMultiply(ctx(), on_device.view(), on_device.view(), Options<double>());
      ASSERT_OK(estimate) << estimate.status();
      EXPECT_EQ(estimate->multiplications, CountProducts(m, m));
      auto workspace = OwnedContext::Create(device(), estimate->workspace_bytes);
      ASSERT_OK(workspace);
      const auto plan = PlanMultiply(workspace->context(), on_device.view(), on_device.view(), Options<double>());
      ASSERT_OK(plan) << plan.status();
      EXPECT_LE(plan->pattern().entries, estimate->max_entries);
      EXPECT_LE(plan->bytes(), estimate->plan_bytes);
      EXPECT_EQ(estimate->value_bytes, estimate->max_entries * 8);
      ASSERT_OK(ExecuteMultiply(workspace->context(), *plan, on_device.view(), on_device.view(),
                                Poisoned<double>(plan->pattern().entries)));
      ASSERT_OK(device().Synchronize(workspace->context().stream()));
    }
  }
}

// If planning frees nothing, bytes() is the sum of what it allocated.
TEST_P(MultiplyTest, PlanBytesAreWhatWasAllocated) {
  const auto m = Fem27(2, 5, 1), d = RandomMatrix(m.rows, m.columns, 0.1, 2);
  const CsrMatrix on_device = Put(m), on_device_d = Put(d);
  for (MultiplyPath path : Paths()) {
    // A reuse plan sorts in memory of its own; tiles that turn out not to pay off are freed.
    if (ctx().is_cuda() && (path == MultiplyPath::kReusePlan || path == MultiplyPath::kAuto)) continue;
    for (bool with_all : {false, true}) {
      SCOPED_TRACE(absl::StrCat("path ", static_cast<int>(path), ", with all ", with_all));
      MultiplyOptions options = Options<double>();
      options.path = path;
      if (with_all) {
        options.transpose_a = true;
        options.mask = on_device_d.view();
        options.addend = on_device_d.view();
      }
      CountingDevice counting(device());
      const ExecContext own(counting, ctx().stream(), ctx().arena());
      const auto plan = PlanMultiply(own, on_device.view(), on_device.view(), options);
      ASSERT_OK(plan) << plan.status();
      EXPECT_EQ(plan->bytes(), counting.allocated_bytes());
      const ConstPatternView c = plan->pattern();
      EXPECT_EQ(plan->bytes() - plan->device_plan().bytes(), (c.rows + 1) * 8 + c.entries * 4);
    }
  }
}

TEST_P(MultiplyTest, AnEmptyPlanIsRefused) {
  const CsrMatrix none = Put(HostCsr<float>());
  EXPECT_EQ(MultiplyPlan().bytes(), 0);
  EXPECT_FALSE(MultiplyPlan().Conforms(none.view(), none.view()));
  const absl::Status s = ExecuteMultiply(ctx(), MultiplyPlan(), none.view(), none.view(), nullptr);
  EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument) << s;
}

TEST_P(MultiplyTest, Semirings) {
  // Rows of A with few entries, and with so many that a block computes the row.
  for (const auto& [inner, density] : {std::pair(80, 0.1), std::pair(400, 0.7)}) {
    const auto a = CastValues<float>(RandomMatrix(60, inner, density, 1, true));
    const auto b = CastValues<float>(RandomMatrix(inner, 90, 0.1, 2, true));
    for (Semiring semiring : {Semiring::kOrAnd, Semiring::kMinPlus}) {
      SCOPED_TRACE(absl::StrCat(inner, ", semiring ", static_cast<int>(semiring)));
      MultiplyOptions options;
      options.semiring = semiring;
      const auto c = Product(a, b, options);
      ASSERT_OK(c) << c.status();
      const bool min_plus = semiring == Semiring::kMinPlus;
      int64_t i = 0;
      for (int32_t r = 0; r < a.rows; ++r) {
        std::map<int32_t, float> row;
        for (int64_t p = a.row_offsets[r]; p < a.row_offsets[r + 1]; ++p) {
          const int32_t k = a.column_indices[p];
          for (int64_t q = b.row_offsets[k]; q < b.row_offsets[k + 1]; ++q) {
            float& v = row.try_emplace(b.column_indices[q], min_plus ? INFINITY : 0.f).first->second;
            v = min_plus ? std::min(v, a.values[p] + b.values[q])
                         : static_cast<float>(v != 0 || (a.values[p] != 0 && b.values[q] != 0));
          }
        }
        ASSERT_EQ(c->row_offsets[r + 1] - i, static_cast<int64_t>(row.size()));
        for (const auto& [column, value] : row) {
          ASSERT_EQ(c->column_indices[i], column);
          ASSERT_EQ(c->values[i++], value) << "row " << r << " column " << column;
        }
      }
    }
  }
}

TEST_P(MultiplyTest, Masks) {
  const auto a = RandomMatrix(600, 80, 0.1, 7), b = RandomMatrix(80, 61, 0.1, 8), mask = RandomMatrix(600, 61, 0.3, 9);
  const CsrMatrix on_device_mask = Put(mask);
  const HostCsr<double> whole = Product(a, b);
  for (bool complement : {false, true}) {
    MultiplyOptions options = Options<double>();
    options.mask = on_device_mask.view();
    options.complement_mask = complement;
    const auto c = Product(a, b, options);
    ASSERT_OK(c) << c.status();
    HostCsr<double> expected;
    expected.rows = whole.rows;
    expected.columns = whole.columns;
    for (int32_t r = 0; r < whole.rows; ++r) {
      const std::set<int32_t> in_mask(mask.column_indices.begin() + mask.row_offsets[r],
                                      mask.column_indices.begin() + mask.row_offsets[r + 1]);
      for (int64_t i = whole.row_offsets[r]; i < whole.row_offsets[r + 1]; ++i) {
        if (in_mask.count(whole.column_indices[i]) == complement) continue;
        expected.column_indices.push_back(whole.column_indices[i]);
        expected.values.push_back(whole.values[i]);
      }
      expected.row_offsets.push_back(expected.entries());
    }
    EXPECT_EQ(*c, expected);
  }
}

TEST_P(MultiplyTest, FactorsAndAddend) {
  const auto a = RandomMatrix(30, 40, 0.1, 1, true), b = RandomMatrix(40, 50, 0.1, 2, true);
  const auto d = RandomMatrix(30, 50, 0.2, 3, true);
  const CsrMatrix on_device_d = Put(d);
  MultiplyOptions options = Options<double>();
  options.alpha = -2;
  const HostCsr<double> whole = Product(a, b);
  const auto scaled = Product(a, b, options);
  ASSERT_OK(scaled) << scaled.status();
  EXPECT_EQ(scaled->column_indices, whole.column_indices);
  for (int64_t i = 0; i < whole.entries(); ++i) ASSERT_EQ(scaled->values[i], -2 * whole.values[i]);
  options.beta = 3;
  options.addend = on_device_d.view();
  const auto sum = Product(a, b, options);
  ASSERT_OK(sum) << sum.status();
  const HostCsr<double>& c = *sum;
  ASSERT_OK(ValidateCsr(c));
  std::map<std::pair<int32_t, int32_t>, double> expected;
  const auto add = [&](const HostCsr<double>& m, double factor) {
    for (int32_t r = 0; r < m.rows; ++r) {
      for (int64_t i = m.row_offsets[r]; i < m.row_offsets[r + 1]; ++i) {
        expected[{r, m.column_indices[i]}] += factor * m.values[i];
      }
    }
  };
  add(whole, -2);
  add(d, 3);
  ASSERT_EQ(c.entries(), static_cast<int64_t>(expected.size()));
  for (int32_t r = 0; r < c.rows; ++r) {
    for (int64_t i = c.row_offsets[r]; i < c.row_offsets[r + 1]; ++i) {
      ASSERT_EQ(c.values[i], (expected.at({r, c.column_indices[i]})));
    }
  }
}

// All options together, on small integers: GraphBLAS, on the CPU, gives the same bits.
TEST_P(MultiplyTest, OptionsTogetherAreGraphBlass) {
  if (!ctx().is_cuda()) GTEST_SKIP() << "the CPU is GraphBLAS";
  OwnedContext cpu = *OwnedContext::Create(TestDevice("cpu"), 1);
  for (uint32_t seed = 0; seed < 40; ++seed) {
    std::mt19937 engine(seed);
    const auto size = [&] { return static_cast<int32_t>(1 + engine() % 150); };
    const int32_t rows = size(), inner = size(), columns = size();
    const bool transpose = seed % 2 == 1;
    const auto a = RandomMatrix(transpose ? inner : rows, transpose ? rows : inner, 0.1, engine(), true);
    const auto b = RandomMatrix(inner, columns, 0.1, engine(), true), mask = RandomMatrix(rows, columns, 0.4, engine());
    const auto d = RandomMatrix(rows, columns, seed % 5 == 0 ? 0 : 0.1, engine(), true);
    const CsrMatrix on_device_mask = Put(mask), on_device_d = Put(d);
    MultiplyOptions host = Options<double>(), options = host;
    for (MultiplyOptions* o : {&host, &options}) {
      o->transpose_a = transpose;
      o->complement_mask = seed % 3 == 1;
      o->alpha = 2;
      o->beta = -3;
      if (seed % 3 != 0) o->mask = o == &host ? ConstPatternView(mask.view()) : ConstPatternView(on_device_mask.view());
      if (seed % 4 != 0) o->addend = o == &host ? d.view() : on_device_d.view();
    }
    const auto product = Multiply(cpu.context(), a.view(), b.view(), host);
    ASSERT_OK(product) << product.status();
    const CsrMatrix on_device_a = Put(a), on_device_b = Put(b);
    const auto estimate = EstimateMultiply(ctx(), on_device_a.view(), on_device_b.view(), options);
    ASSERT_OK(estimate) << estimate.status();
    auto workspace = OwnedContext::Create(device(), estimate->workspace_bytes);
    ASSERT_OK(workspace);
    const auto c = Multiply(workspace->context(), on_device_a.view(), on_device_b.view(), options);
    ASSERT_OK(c) << c.status();
    EXPECT_EQ(*c->Download<double>(device(), workspace->context().stream()),
              *product->Download<double>(TestDevice("cpu"), cpu.context().stream()))
        << "seed " << seed;
  }
}

TEST_P(MultiplyTest, RefusesWhatDoesNotConform) {
  const CsrMatrix a = Put(RandomMatrix(4, 5, 1, 1)), b = Put(RandomMatrix(5, 6, 1, 2));
  const CsrMatrix f = Put(CastValues<float>(RandomMatrix(5, 6, 1, 2)));
  const auto error = [&](const CsrMatrix& x, const CsrMatrix& y, const MultiplyOptions& options) {
    const absl::Status s = Multiply(ctx(), x.view(), y.view(), options).status();
    EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument);
    return std::string(s.message());
  };
  EXPECT_THAT(error(b, a, Options<double>()), StartsWith("b: 4 rows, but a has 6"));
  EXPECT_THAT(error(a, b, Options<float>()), StartsWith("a: values"));
  EXPECT_THAT(error(a, f, Options<double>()), StartsWith("b: values"));
  MultiplyOptions options = Options<double>();
  options.complement_mask = true;
  EXPECT_THAT(error(a, b, options), StartsWith("mask: "));
  options = Options<double>();
  options.mask = a.view();
  EXPECT_THAT(error(a, b, options), StartsWith("mask: 4x5"));
  options = Options<double>();
  options.addend = a.view();
  EXPECT_THAT(error(a, b, options), StartsWith("addend: 4x5"));
  options = Options<double>();
  options.semiring = Semiring::kMinPlus;
  options.alpha = 2;
  EXPECT_THAT(error(a, b, options), StartsWith("alpha: "));
  const auto plan = PlanMultiply(ctx(), a.view(), b.view(), Options<double>());
  ASSERT_OK(plan);
  double* values = Poisoned<double>(24);
  EXPECT_THAT(std::string(ExecuteMultiply(ctx(), *plan, b.view(), b.view(), values).message()), StartsWith("plan: "));
}

}  // namespace
}  // namespace intrawarp
