// SPDX-License-Identifier: Apache-2.0
// Products under a mask, on every device: the entries of the mask that have a product, and only the memory for them.
#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/sparse/multiply.h"
#include "tests/engine/sparse/counting_device.h"
#include "tests/engine/sparse/reference.h"
#include "tests/engine/sparse/sparse_test.h"

namespace intrawarp {
namespace {

constexpr Semiring kSemirings[] = {Semiring::kPlusTimes, Semiring::kOrAnd, Semiring::kMinPlus};
constexpr MultiplyPrecision kPrecisions[] = {MultiplyPrecision::kFp16, MultiplyPrecision::kBf16,
                                             MultiplyPrecision::kTf32, MultiplyPrecision::kFp32,
                                             MultiplyPrecision::kFp64};

// alpha A B under the mask; each row of `mask` is the set of its columns.
template <typename T>
HostCsr<T> Reference(const HostCsr<T>& a, const HostCsr<T>& b, const HostCsr<double>& mask,
                     Semiring semiring = Semiring::kPlusTimes, T alpha = 1) {
  const auto has = [&mask](int32_t r, int32_t column) {
    const auto first = mask.column_indices.begin();
    return std::binary_search(first + mask.row_offsets[r], first + mask.row_offsets[r + 1], column);
  };
  return OrderedProduct(a, b, semiring, alpha, has);
}

// x + beta y.
template <typename T>
HostCsr<T> Sum(const HostCsr<T>& x, const HostCsr<T>& y, T beta) {
  HostCsr<T> sum;
  sum.rows = x.rows;
  sum.columns = x.columns;
  for (int32_t r = 0; r < x.rows; ++r) {
    std::map<int32_t, T> row;
    for (int64_t i = x.row_offsets[r]; i < x.row_offsets[r + 1]; ++i) row[x.column_indices[i]] = x.values[i];
    for (int64_t i = y.row_offsets[r]; i < y.row_offsets[r + 1]; ++i) row[y.column_indices[i]] += beta * y.values[i];
    for (const auto& [column, value] : row) {
      sum.column_indices.push_back(column);
      sum.values.push_back(value);
    }
    sum.row_offsets.push_back(sum.entries());
  }
  return sum;
}

template <typename T>
HostCsr<T> Transpose(const HostCsr<T>& m) {
  HostCsr<T> t;
  t.rows = m.columns;
  t.columns = m.rows;
  std::vector<std::vector<std::pair<int32_t, T>>> rows(t.rows);
  for (int32_t r = 0; r < m.rows; ++r) {
    for (int64_t i = m.row_offsets[r]; i < m.row_offsets[r + 1]; ++i) {
      rows[m.column_indices[i]].emplace_back(r, m.values[i]);
    }
  }
  for (const auto& row : rows) {
    for (const auto& [column, value] : row) {
      t.column_indices.push_back(column);
      t.values.push_back(value);
    }
    t.row_offsets.push_back(t.entries());
  }
  return t;
}

// A matrix with these rows of columns, and small integers as values.
HostCsr<double> FromRows(int32_t columns, const std::vector<std::vector<int32_t>>& rows) {
  HostCsr<double> m;
  m.columns = columns;
  for (const std::vector<int32_t>& row : rows) {
    for (int32_t c : row) {
      m.column_indices.push_back(c);
      m.values.push_back(static_cast<double>((m.entries() * 7 + c) % 9) - 4);
    }
    m.row_offsets.push_back(m.entries());
    ++m.rows;
  }
  return m;
}

// `count` different columns below `columns`, ascending.
std::vector<int32_t> RandomColumns(int32_t columns, int32_t count, std::mt19937& engine) {
  std::vector<int32_t> all(columns);
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), engine);
  all.resize(std::min(columns, count));
  std::sort(all.begin(), all.end());
  return all;
}

class MaskedTest : public SparseTest {
 protected:
  // The product in exactly the workspace of its estimate, planned and executed at once, and twice by a plan, which must
  // give the same bits; bounds of the estimate hold.
  template <typename T>
  HostCsr<T> Product(const HostCsr<T>& a, const HostCsr<T>& b, const HostCsr<double>& mask, MultiplyOptions options,
                     const HostCsr<T>* addend = nullptr) {
    const CsrMatrix on_device_a = Put(a), on_device_b = Put(b), on_device_mask = Put(mask);
    CsrMatrix on_device_addend;
    options.mask = on_device_mask.view();
    if (addend != nullptr) {
      on_device_addend = Put(*addend);
      options.addend = on_device_addend.view();
    }
    const auto estimate = EstimateMultiply(ctx(), on_device_a.view(), on_device_b.view(), options);
    EXPECT_OK(estimate) << estimate.status();
    if (!estimate.ok()) return {};
    auto workspace = OwnedContext::Create(device(), estimate->workspace_bytes);
    EXPECT_OK(workspace);
    const ExecContext own = workspace->context();
    const auto once = Multiply(own, on_device_a.view(), on_device_b.view(), options);
    EXPECT_OK(once) << once.status();
    if (!once.ok()) return {};
    const HostCsr<T> product = *once->template Download<T>(device(), own.stream());
    ExpectPlanGives(own, on_device_a, on_device_b, options, *estimate, product);
    return product;
  }
  template <typename T>
  void ExpectPlanGives(const ExecContext& own, const CsrMatrix& a, const CsrMatrix& b, const MultiplyOptions& options,
                       const MultiplyEstimate& estimate, const HostCsr<T>& product) {
    CountingDevice counting(device());
    const ExecContext counted(counting, own.stream(), own.arena());
    const auto plan = PlanMultiply(counted, a.view(), b.view(), options);
    ASSERT_OK(plan) << plan.status();
    // Tiles of the whole product that turn out not to pay off are freed.
    if (options.mask_route == MaskRoute::kMasked) {
      EXPECT_EQ(plan->bytes(), counting.allocated_bytes());
    }
    EXPECT_LE(plan->bytes(), counting.allocated_bytes());
    EXPECT_LE(plan->bytes(), estimate.plan_bytes);
    ASSERT_OK(device().Synchronize(own.stream()));
    const ConstPatternView c = plan->pattern();
    EXPECT_LE(c.entries, estimate.max_entries);
    EXPECT_EQ(estimate.value_bytes, estimate.max_entries * static_cast<int64_t>(sizeof(T)));
    ASSERT_EQ(Download(c.row_offsets, c.rows + 1), product.row_offsets);
    ASSERT_EQ(Download(c.column_indices, c.entries), product.column_indices);
    for (int round = 0; round < 2; ++round) {
      T* const values = Poisoned<T>(c.entries);
      ASSERT_OK(ExecuteMultiply(own, *plan, a.view(), b.view(), values));
      ASSERT_OK(device().Synchronize(own.stream()));
      ASSERT_EQ(Download(values, c.entries), product.values);
    }
  }
  // The ways that differ on this device.
  std::vector<MaskRoute> Routes() {
    if (!ctx().is_cuda()) return {MaskRoute::kAuto};
    return {MaskRoute::kAuto, MaskRoute::kMasked, MaskRoute::kWhole};
  }
  // Small integers, so that every order of a sum gives the same bits, in both types, over every semiring, each way.
  void ExpectReference(const HostCsr<double>& a, const HostCsr<double>& b, const HostCsr<double>& mask) {
    const auto fa = CastValues<float>(a), fb = CastValues<float>(b);
    for (Semiring semiring : kSemirings) {
      const HostCsr<double> expected = Reference(a, b, mask, semiring);
      for (MaskRoute route : Routes()) {
        SCOPED_TRACE(absl::StrCat("semiring ", static_cast<int>(semiring), ", route ", static_cast<int>(route)));
        MultiplyOptions options = Options<double>(semiring);
        options.mask_route = route;
        ASSERT_EQ(Product(a, b, mask, options), expected);
        options.precision = MultiplyPrecision::kFp32;
        ASSERT_EQ(Product(fa, fb, mask, options), CastValues<float>(expected));
      }
    }
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(MaskedTest);

// Small integers are exact in every precision.
TEST_P(MaskedTest, AllOptionsTogetherGiveTheReference) {
  for (uint32_t seed = 0; seed < 90; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 engine(seed);
    const auto size = [&] { return static_cast<int32_t>(1 + engine() % (seed % 3 == 0 ? 20 : 170)); };
    const int32_t rows = size(), inner = size(), columns = size();
    const auto density = [&] { return (1 + engine() % 30) / 60.0; };
    const auto a = RandomMatrix(rows, inner, density(), engine(), true);
    const auto b = RandomMatrix(inner, columns, density(), engine(), true);
    const auto mask = RandomMatrix(rows, columns, seed % 7 == 0 ? 1 : density(), engine());
    const auto d = RandomMatrix(rows, columns, seed % 5 == 0 ? 0 : 0.1, engine(), true);
    MultiplyOptions options;
    options.semiring = kSemirings[seed % 3];
    options.precision = kPrecisions[engine() % 5];
    options.transpose_a = engine() % 2 == 1;
    const bool plus_times = options.semiring == Semiring::kPlusTimes, add = plus_times && engine() % 2 == 1;
    if (plus_times && engine() % 2 == 1) options.alpha = -3;
    options.beta = 2;
    const auto expect = [&]<typename T>(T alpha) {
      const auto ta = CastValues<T>(a), tb = CastValues<T>(b), td = CastValues<T>(d);
      HostCsr<T> expected = Reference(ta, tb, mask, options.semiring, alpha);
      if (add) expected = Sum(expected, td, T{2});
      for (MaskRoute route : Routes()) {
        options.mask_route = route;
        ASSERT_EQ(Product(options.transpose_a ? Transpose(ta) : ta, tb, mask, options, add ? &td : nullptr), expected)
            << static_cast<int>(route);
      }
    };
    if (options.precision == MultiplyPrecision::kFp64) {
      expect(options.alpha);
    } else {
      expect(static_cast<float>(options.alpha));
    }
  }
}

// Every path leads to the same kernels by the mask, and to kernels of its own where the whole product is made.
TEST_P(MaskedTest, EveryPathGivesTheSame) {
  const auto a = RandomMatrix(61, 83, 0.2, 1, true), b = RandomMatrix(83, 47, 0.2, 2, true),
             mask = RandomMatrix(61, 47, 0.3, 3);
  for (MultiplyPath path :
       {MultiplyPath::kAuto, MultiplyPath::kScalar, MultiplyPath::kTiles, MultiplyPath::kReusePlan}) {
    MultiplyOptions options = Options<double>();
    options.path = path;
    options.many_executions = path == MultiplyPath::kAuto;
    for (MaskRoute route : Routes()) {
      options.mask_route = route;
      EXPECT_EQ(Product(a, b, mask, options), Reference(a, b, mask))
          << static_cast<int>(path) << ", " << static_cast<int>(route);
    }
  }
}

// Within (2u + u^2 + g_k) |A||B| (the bound of multiply.h), u the unit roundoff of the precision.
TEST_P(MaskedTest, EveryPrecisionKeepsItsBound) {
  // Rows of A with few entries, and with so many that a block computes the row.
  for (const auto& [inner, density] : {std::pair(90, 0.2), std::pair(500, 0.8)}) {
    const auto a = CastValues<float>(RandomMatrix(37, inner, density, 5));
    const auto b = CastValues<float>(RandomMatrix(inner, 701, 0.2, 6));
    const auto mask = RandomMatrix(37, 701, 0.6, 7);
    for (MultiplyPrecision precision : kPrecisions) {
      if (precision == MultiplyPrecision::kFp64) continue;
      SCOPED_TRACE(absl::StrCat(inner, ", precision ", static_cast<int>(precision)));
      MultiplyOptions options;
      options.precision = precision;
      const HostCsr<float> c = Product(a, b, mask, options);
      const double u = precision == MultiplyPrecision::kFp32   ? 0
                       : precision == MultiplyPrecision::kBf16 ? std::ldexp(1, -8)
                                                               : std::ldexp(1, -11);
      int64_t i = 0;
      for (int32_t r = 0; r < a.rows; ++r) {
        const ReferenceRow row = ReferenceProductRow(a, b, r);
        for (int64_t m = mask.row_offsets[r]; m < mask.row_offsets[r + 1]; ++m) {
          const auto entry = row.find(mask.column_indices[m]);
          if (entry == row.end()) continue;
          ASSERT_LT(i, c.row_offsets[r + 1]);
          ASSERT_EQ(c.column_indices[i], entry->first) << "row " << r;
          const ReferenceEntry& e = entry->second;
          const double k = e.terms * std::ldexp(1, -24), bound = (2 * u + u * u + k / (1 - k)) * e.magnitude;
          ASSERT_NEAR(c.values[i++], e.value, bound + 1e-12 * e.magnitude) << "row " << r;
        }
        ASSERT_EQ(i, c.row_offsets[r + 1]);
      }
    }
  }
}

// A warp adds by ascending k, so that a loop of fma gives the same bits; so it does where rows of B are searched
// instead of walked.
TEST_P(MaskedTest, SumsAreInOrder) {
  if (!ctx().is_cuda()) GTEST_SKIP() << "the CPU is GraphBLAS";
  constexpr int32_t kInner = 120, kColumns = 60000;
  std::mt19937 engine(9);
  std::vector<std::vector<int32_t>> of_a, of_b, of_mask;
  for (int32_t k = 0; k < kInner; ++k) {
    of_b.push_back(RandomColumns(kColumns, k % 7 == 3 ? kColumns / 2 : 1 + engine() % (k % 5 == 0 ? 1000 : 8), engine));
  }
  for (int32_t r = 0; r < 40; ++r) {
    of_a.push_back(RandomColumns(kInner, 1 + engine() % kInner, engine));
    std::set<int32_t> columns;
    for (int32_t c : RandomColumns(kColumns, 1 << r % 10, engine)) columns.insert(c);
    // Columns that short rows of B have.
    for (int32_t k = 1; k < kInner; k += 11) columns.insert(of_b[k][0]);
    of_mask.emplace_back(columns.begin(), columns.end());
  }
  auto a = CastValues<float>(FromRows(kInner, of_a)), b = CastValues<float>(FromRows(kColumns, of_b));
  a.values = RandomFloats(a.values.size(), 10, -1, 1);
  b.values = RandomFloats(b.values.size(), 11, -1, 1);
  const HostCsr<double> mask = FromRows(kColumns, of_mask);
  MultiplyOptions options = Options<float>();
  options.mask_route = MaskRoute::kMasked;
  ASSERT_EQ(Product(a, b, mask, options), Reference(a, b, mask));
}

// The warps of a block have sums of their own, whose order is fixed, too.
TEST_P(MaskedTest, TheBitsAreTheSameInEveryRun) {
  auto a = CastValues<float>(RandomMatrix(20, 700, 0.7, 12)), b = CastValues<float>(RandomMatrix(700, 900, 0.3, 13));
  const auto mask = RandomMatrix(20, 900, 0.8, 14);
  for (MaskRoute route : Routes()) {
    MultiplyOptions options = Options<float>();
    options.mask_route = route;
    const HostCsr<float> first = Product(a, b, mask, options);
    ASSERT_GT(first.entries(), 10000);
    for (int run = 0; run < 5; ++run) ASSERT_EQ(Product(a, b, mask, options), first);
  }
}

// Rows of the mask of every length around a piece of a warp (256 entries) and of a block (512), under rows of A of
// every length around the limit between them (192), also where few of the entries have a product.
TEST_P(MaskedTest, MaskRowsOfEveryLengthAroundAPiece) {
  constexpr int32_t kInner = 400, kColumns = 3000;
  constexpr int kLengths[] = {0, 1, 2, 31, 32, 33, 63, 255, 256, 257, 511, 512, 513, 767, 768, 769, 1023, 1024, 1025};
  for (double density : {0.002, 0.1}) {
    SCOPED_TRACE(density);
    std::mt19937 engine(15);
    std::vector<std::vector<int32_t>> of_a, of_mask;
    for (int entries_of_a : {1, 5, 33, 191, 192, 193, 400}) {
      for (int length : kLengths) {
        of_a.push_back(RandomColumns(kInner, entries_of_a, engine));
        of_mask.push_back(RandomColumns(kColumns, length, engine));
      }
    }
    ExpectReference(FromRows(kInner, of_a), RandomMatrix(kInner, kColumns, density, 16, true),
                    FromRows(kColumns, of_mask));
  }
}

// Rows of B so much longer than a piece that the piece is searched in them, between short ones.
TEST_P(MaskedTest, LongRowsOfBUnderShortRowsOfTheMask) {
  constexpr int32_t kInner = 300, kColumns = 50000;
  std::mt19937 engine(17);
  std::vector<std::vector<int32_t>> of_a, of_b, of_mask;
  for (int32_t k = 0; k < kInner; ++k) {
    of_b.push_back(RandomColumns(kColumns, k % 41 == 5 ? 30000 : k % 3 == 0 ? 0 : 1 + engine() % 40, engine));
  }
  for (int32_t r = 0; r < 60; ++r) {
    of_a.push_back(RandomColumns(kInner, r % 10 == 9 ? kInner : 1 + engine() % 100, engine));
    of_mask.push_back(RandomColumns(kColumns, r % 13 == 7 ? 2000 : engine() % 70, engine));
  }
  // Masks at the ends of the rows of B.
  of_mask[0] = {0, kColumns - 1};
  of_mask[1] = {kColumns - 1};
  of_mask[2] = of_b[5];
  ExpectReference(FromRows(kInner, of_a), FromRows(kColumns, of_b), FromRows(kColumns, of_mask));
}

TEST_P(MaskedTest, ARowOfAMillionEntriesUnderAHubOfA) {
  constexpr int32_t kInner = 100000, kColumns = 1200000;
  std::mt19937 engine(18);
  std::vector<std::vector<int32_t>> of_a(5), of_b(kInner), of_mask(5);
  of_a[1].resize(kInner);
  std::iota(of_a[1].begin(), of_a[1].end(), 0);
  of_a[3] = {3, 77, 4000};
  for (std::vector<int32_t>& row : of_b) {
    std::set<int32_t> columns;
    for (unsigned i = engine() % 4; i > 0; --i) columns.insert(engine() % kColumns);
    row.assign(columns.begin(), columns.end());
  }
  of_b[77] = RandomColumns(kColumns, 300000, engine);
  of_mask[1] = RandomColumns(kColumns, 1000000, engine);
  of_mask[2] = RandomColumns(kColumns, 1000, engine);
  of_mask[3] = of_mask[1];
  of_mask[4] = {5};
  const auto a = CastValues<float>(FromRows(kInner, of_a)), b = CastValues<float>(FromRows(kColumns, of_b));
  const HostCsr<double> mask = FromRows(kColumns, of_mask);
  const HostCsr<float> expected = Reference(a, b, mask);
  ASSERT_GT(expected.row_offsets[2], 300000);
  EXPECT_TRUE(Product(a, b, mask, Options<float>()) == expected);
}

TEST_P(MaskedTest, EmptyShapes) {
  for (int rows : {0, 3}) {
    for (int inner : {0, 3}) {
      for (int columns : {0, 3}) {
        for (double density : {0.0, 1.0}) {
          SCOPED_TRACE(absl::StrCat(rows, "x", inner, "x", columns, " ", density));
          const auto a = RandomMatrix(rows, inner, 1, 1, true), b = RandomMatrix(inner, columns, 1, 2, true);
          ExpectReference(a, b, RandomMatrix(rows, columns, density, 3));
          const auto d = RandomMatrix(rows, columns, 1, 4, true), mask = RandomMatrix(rows, columns, density, 3);
          EXPECT_EQ(Product(a, b, mask, Options<double>(), &d), Sum(Reference(a, b, mask), d, 1.0));
          MultiplyOptions transposed = Options<double>();
          transposed.transpose_a = true;
          EXPECT_EQ(Product(Transpose(a), b, mask, transposed), Reference(a, b, mask));
        }
      }
    }
  }
  const auto none = RandomMatrix(40, 40, 0, 1), some = RandomMatrix(40, 40, 0.2, 2, true);
  for (const auto& [a, b, mask] : {std::tuple(none, some, some), std::tuple(some, none, some),
                                   std::tuple(some, some, none), std::tuple(none, none, none)}) {
    EXPECT_EQ(Product(a, b, mask, Options<double>()), none);
  }
}

// Entries of A and B that meet nowhere under the mask.
TEST_P(MaskedTest, AMaskBesideTheProductGivesNoEntries) {
  const HostCsr<double> a = FromRows(4, {{0, 1}, {2}}), b = FromRows(600, {{0, 5}, {599}, {7}, {8}});
  std::vector<int32_t> others;
  for (int32_t c = 0; c < 600; ++c) {
    if (c != 0 && c != 5 && c != 599) others.push_back(c);
  }
  const HostCsr<double> mask = FromRows(600, {others, {6, 8}});
  EXPECT_EQ(Product(a, b, mask, Options<double>()).entries(), 0);
}

// Zeros and entries that cancel stay.
TEST_P(MaskedTest, ThePatternIsStructural) {
  const HostCsr<float> a = {2, 2, {0, 2, 3}, {0, 1, 0}, {1, -1, 0}}, b = {2, 1, {0, 1, 2}, {0, 0}, {3, 3}};
  const HostCsr<double> mask = {2, 1, {0, 1, 2}, {0, 0}, {0, 0}};
  EXPECT_EQ(Product(a, b, mask, Options<float>()), (HostCsr<float>{2, 1, {0, 1, 2}, {0, 0}, {0, 0}}));
}

TEST_P(MaskedTest, OnePlanServesManyValues) {
  auto a = CastValues<float>(RandomMatrix(50, 300, 0.3, 20)), b = CastValues<float>(RandomMatrix(300, 80, 0.2, 21));
  const auto mask = RandomMatrix(50, 80, 0.4, 22);
  const CsrMatrix pattern_a = Put(a), pattern_b = Put(b), on_device_mask = Put(mask);
  MultiplyOptions options = Options<float>();
  options.mask = on_device_mask.view();
  const auto plan = PlanMultiply(ctx(), pattern_a.view(), pattern_b.view(), options);
  ASSERT_OK(plan) << plan.status();
  for (uint32_t seed = 0; seed < 3; ++seed) {
    a.values = RandomFloats(a.values.size(), seed, -1, 1);
    b.values = RandomFloats(b.values.size(), seed + 10, -1, 1);
    const CsrMatrix on_device_a = Put(a), on_device_b = Put(b);
    const int64_t entries = plan->pattern().entries;
    float* const values = Poisoned<float>(entries);
    ASSERT_OK(ExecuteMultiply(ctx(), *plan, on_device_a.view(), on_device_b.view(), values));
    EXPECT_EQ(Download(values, entries), Product(a, b, mask, Options<float>()).values);
  }
}

// A whole product of millions of entries under a mask of a hundred: nothing is taken for the whole.
TEST_P(MaskedTest, ASmallMaskTakesLittleMemory) {
  constexpr int32_t kSize = 3001;
  std::vector<std::vector<int32_t>> of_arrow(kSize, {0}), of_mask(kSize);
  of_arrow[0].resize(kSize);
  std::iota(of_arrow[0].begin(), of_arrow[0].end(), 0);
  for (int32_t r = 1; r < kSize; ++r) of_arrow[r].push_back(r);
  for (int32_t i = 0; i < 100; ++i) of_mask[i * 30] = {i * 29};
  const HostCsr<double> arrow = FromRows(kSize, of_arrow), mask = FromRows(kSize, of_mask);
  const CsrMatrix on_device = Put(arrow), on_device_mask = Put(mask);
  MultiplyOptions options = Options<double>();
  const auto whole = EstimateMultiply(ctx(), on_device.view(), on_device.view(), options);
  ASSERT_OK(whole) << whole.status();
  options.mask = on_device_mask.view();
  const auto masked = EstimateMultiply(ctx(), on_device.view(), on_device.view(), options);
  ASSERT_OK(masked) << masked.status();
  EXPECT_GT(whole->max_entries, 9000000);
  EXPECT_EQ(masked->multiplications, whole->multiplications);
  EXPECT_EQ(masked->max_entries, 100);
  EXPECT_EQ(masked->value_bytes, 800);
  // The offsets, and twelve bytes at most for each row with an entry.
  EXPECT_LE(masked->plan_bytes, (kSize + 1) * 8 + 100 * (4 + 12) + 256);
  EXPECT_LT(masked->workspace_bytes, 200000);
  EXPECT_EQ(Product(arrow, arrow, mask, Options<double>()), Reference(arrow, arrow, mask));
}

// The bound of each row is the least of its multiplications, the columns, and its entries of the mask.
TEST_P(MaskedTest, TheEstimateCountsRowByRow) {
  const HostCsr<double> a = FromRows(3, {{0}, {0, 1, 2}, {}, {1}, {0, 1, 2}});
  const HostCsr<double> b = FromRows(6, {{0, 1, 2}, {3}, {0, 1, 2, 3, 4, 5}});
  const HostCsr<double> mask = FromRows(6, {{4, 5}, {0, 1, 2, 3, 4, 5}, {1}, {1, 2, 3}, {}});
  const CsrMatrix on_device_a = Put(a), on_device_b = Put(b), on_device_mask = Put(mask);
  MultiplyOptions options = Options<double>();
  options.mask = on_device_mask.view();
  const auto e = EstimateMultiply(ctx(), on_device_a.view(), on_device_b.view(), options);
  ASSERT_OK(e) << e.status();
  EXPECT_EQ(e->multiplications, 3 + 10 + 0 + 1 + 10);
  EXPECT_EQ(e->max_entries, 2 + 6 + 0 + 1 + 0);
}

}  // namespace
}  // namespace intrawarp
