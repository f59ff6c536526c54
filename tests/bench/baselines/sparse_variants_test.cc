// SPDX-License-Identifier: Apache-2.0
// Every variant makes the right matrix, since a comparison with a wrong matrix is worthless.
#include "tests/bench/baselines/sparse_variants.h"

#include <cmath>
#include <limits>
#include <map>

#include "engine/base/status_macros.h"
#include "tests/engine/device_test.h"
#include "tests/engine/sparse/reference.h"

namespace intrawarp::baselines {
namespace {

class SparseVariantsTest : public DeviceTest {
 protected:
  void SetUp() override {
    if (!ctx().is_cuda()) GTEST_SKIP() << "the published variants are for CUDA";
  }

  CsrMatrix OnDevice(const HostCsr<float>& m) { return *CsrMatrix::Upload(device(), ctx().stream(), m); }

  // The second of two products by the same object.
  static absl::StatusOr<CsrMatrix> RunTwice(SparseProduct& product) {
    for (int i = 0; i < 2; ++i) {
      INTRAWARP_RETURN_IF_ERROR(product.Prepare());
      INTRAWARP_RETURN_IF_ERROR(product.Run());
      INTRAWARP_RETURN_IF_ERROR(product.Run());
      INTRAWARP_RETURN_IF_ERROR(product.Finish());
    }
    return product.Result();
  }

  static bool IsEmpty(const HostCsr<float>& a, const HostCsr<float>& b) {
    for (int32_t i = 0; i < a.rows; ++i) {
      if (!ReferenceProductRow(a, b, i).empty()) return false;
    }
    return true;
  }

  // Against rows made one at a time in float64. A missing entry is an exact 0 where the method drops zeros.
  static void ExpectRows(const HostCsr<float>& a, const HostCsr<float>& b, const HostCsr<float>& c, SparseMethod method,
                         bool exact) {
    const bool fp16 = RoundsToFp16(method);
    for (int32_t i = 0; i < c.rows; ++i) {
      std::map<int32_t, float> row;
      for (int64_t p = c.row_offsets[i]; p < c.row_offsets[i + 1]; ++p) row[c.column_indices[p]] = c.values[p];
      ASSERT_EQ(static_cast<int64_t>(row.size()), c.row_offsets[i + 1] - c.row_offsets[i]) << "row " << i;
      size_t expected = 0;
      for (const auto& [column, e] : ReferenceProductRow(a, b, i)) {
        const auto found = row.find(column);
        ASSERT_TRUE(found != row.end() || IsTiles(method)) << "row " << i << " column " << column;
        expected += found != row.end();
        const float got = found == row.end() ? 0 : found->second;
        const double bound = exact ? 0 : e.magnitude * (fp16 ? 0x1p-9 : 0x1p-22 * e.terms) + 1e-6 * e.terms * fp16;
        ASSERT_NEAR(got, e.value, bound) << "row " << i << " column " << column;
        ASSERT_TRUE(found == row.end() || !IsTiles(method) || got != 0) << "row " << i << " column " << column;
      }
      ASSERT_EQ(expected, row.size()) << "row " << i;
    }
  }

  void ExpectProduct(const HostCsr<float>& a, const HostCsr<float>& b, bool exact) {
    const ExecContext context = ctx();
    const CsrMatrix device_a = OnDevice(a), device_b = OnDevice(b);
    for (SparseMethod method : kSparseMethods) {
      // cuSPARSE refuses some of these.
      if (IsCusparse(method) && IsEmpty(a, b)) continue;
      SCOPED_TRACE(testing::Message() << SparseMethodName(method) << " " << a.rows << "x" << a.columns << "x"
                                      << b.columns << " " << a.entries() << " entries");
      const auto product = MakeSparseProduct(context, method, device_a.view(), device_b.view());
      if (product.status().code() == absl::StatusCode::kNotFound) continue;  // cuSPARSE
      ASSERT_OK(product) << product.status();
      const auto c = RunTwice(**product);
      ASSERT_OK(c) << c.status();
      const HostCsr<float> host = *c->Download<float>(device(), ctx().stream());
      ASSERT_EQ(host.rows, a.rows);
      ASSERT_EQ(host.columns, b.columns);
      ASSERT_EQ(host.row_offsets.front(), 0);
      ASSERT_EQ(host.row_offsets.back(), host.entries());
      ASSERT_NO_FATAL_FAILURE(ExpectRows(a, b, host, method, exact));
      // The check of the benchmark agrees.
      const auto reference = MakeSparseReference(context, device_a.view(), device_b.view());
      ASSERT_OK(reference) << reference.status();
      const SparseCheck check = exact                  ? SparseCheck::kExact
                                : RoundsToFp16(method) ? SparseCheck::kFp16
                                                       : SparseCheck::kFp32;
      const SparseErrors errors = *(*reference)->Compare(*c, check, IsTiles(method));
      EXPECT_TRUE(errors.ok()) << errors.pattern << " " << errors.values << " " << errors.of_bound;
    }
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(SparseVariantsTest);

TEST_P(SparseVariantsTest, RandomRectangularMatrices) {
  const int sizes[][3] = {{1, 1, 1}, {7, 8, 9}, {16, 16, 16}, {17, 33, 5}, {64, 100, 71}, {130, 64, 200}, {1, 300, 1}};
  for (const auto& [rows, inner, columns] : sizes) {
    for (const double density : {0.03, 0.3, 1.0}) {
      for (const bool integers : {true, false}) {
        const auto a = CastValues<float>(RandomMatrix(rows, inner, density, rows + 1, integers));
        const auto b = CastValues<float>(RandomMatrix(inner, columns, density, columns + 2, integers));
        ASSERT_NO_FATAL_FAILURE(ExpectProduct(a, b, integers));
      }
    }
  }
}

TEST_P(SparseVariantsTest, Squares) {
  for (const int n : {3, 40, 257}) {
    const auto a = CastValues<float>(RandomMatrix(n, n, 0.1, n));
    const ExecContext context = ctx();
    const CsrMatrix on_device = OnDevice(a);
    for (SparseMethod method : kSparseMethods) {
      const auto product = MakeSparseProduct(context, method, on_device.view(), on_device.view());
      if (product.status().code() == absl::StatusCode::kNotFound) continue;
      ASSERT_OK(product) << SparseMethodName(method) << product.status();
      const auto c = RunTwice(**product);
      ASSERT_OK(c) << SparseMethodName(method) << c.status();
      SCOPED_TRACE(SparseMethodName(method));
      ASSERT_NO_FATAL_FAILURE(ExpectRows(a, a, *c->Download<float>(device(), ctx().stream()), method, false));
    }
  }
}

TEST_P(SparseVariantsTest, EmptyMatrices) {
  HostCsr<float> none;
  ExpectProduct(none, none, true);
  const auto rows = CastValues<float>(RandomMatrix(20, 30, 0, 1)),
             columns = CastValues<float>(RandomMatrix(30, 9, 1, 1));
  ExpectProduct(rows, columns, true);
}

// Only some methods drop entries that cancel; tiles that become empty then go as a whole.
TEST_P(SparseVariantsTest, CancelledEntries) {
  const ExecContext context = ctx();
  HostCsr<float> a{2, 12, {0, 2, 4}, {0, 11, 0, 11}, {1, -1, 1, 2}};
  HostCsr<float> b{12, 20, {0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 4}, {0, 19, 0, 19}, {3, 5, 3, 6}};
  const CsrMatrix device_a = OnDevice(a), device_b = OnDevice(b);
  for (SparseMethod method : kSparseMethods) {
    const auto product = MakeSparseProduct(context, method, device_a.view(), device_b.view());
    if (product.status().code() == absl::StatusCode::kNotFound) continue;
    ASSERT_OK(product) << product.status();
    const HostCsr<float> c = *RunTwice(**product)->Download<float>(device(), ctx().stream());
    // (0, 0) cancels.
    EXPECT_EQ(c.entries(), IsTiles(method) ? 3 : 4) << SparseMethodName(method);
    ASSERT_NO_FATAL_FAILURE(ExpectRows(a, b, c, method, true));
  }
}

TEST_P(SparseVariantsTest, TileCounts) {
  const ExecContext context = ctx();
  // Tiles (0, 0) and (0, 1) by (0, 0), (1, 0) and (1, 1): two tiles of C from three tasks.
  const HostCsr<float> a{1, 16, {0, 2}, {0, 15}, {1, 1}};
  const HostCsr<float> b{16, 16, {0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3}, {3, 4, 12}, {1, 1, 1}};
  const CsrMatrix device_a = OnDevice(a), device_b = OnDevice(b);
  const auto product = *MakeSparseProduct(context, SparseMethod::kTensorTiles, device_a.view(), device_b.view());
  ASSERT_OK(RunTwice(*product));
  EXPECT_EQ(product->Tiles().tiles, 2);
  EXPECT_EQ(product->Tiles().tasks, 3);
}

TEST_P(SparseVariantsTest, TilesRefuseWhatTheyCannotHold) {
  const ExecContext context = ctx();
  for (const float value : {65520.0f, -1e9f, 1e-9f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    const CsrMatrix a = OnDevice({1, 1, {0, 1}, {0}, {value}});
    const auto product = *MakeSparseProduct(context, SparseMethod::kTensorTiles, a.view(), a.view());
    EXPECT_EQ(product->Prepare().code(), absl::StatusCode::kOutOfRange) << value;
    const auto plain = *MakeSparseProduct(context, SparseMethod::kTiles, a.view(), a.view());
    EXPECT_EQ(plain->Prepare().ok(), std::isfinite(value)) << value;
  }
  const CsrMatrix a = OnDevice({1, 2, {0, 2}, {0, 1}, {65504.0f, 0.0f}}),
                  b = OnDevice({2, 1, {0, 1, 2}, {0, 0}, {1, 1}});
  EXPECT_OK(RunTwice(**MakeSparseProduct(context, SparseMethod::kTensorTiles, a.view(), b.view())));
}

// The check that the benchmark relies on finds errors.
TEST_P(SparseVariantsTest, CheckSeesWrongResults) {
  const ExecContext context = ctx();
  const auto a = CastValues<float>(RandomMatrix(50, 50, 0.2, 5));
  const CsrMatrix on_device = OnDevice(a);
  const auto reference = *MakeSparseReference(context, on_device.view(), on_device.view());
  const auto product = *MakeSparseProduct(context, SparseMethod::kOurs, on_device.view(), on_device.view());
  const HostCsr<float> right = *RunTwice(*product)->Download<float>(device(), ctx().stream());
  const auto errors = [&](const HostCsr<float>& c, bool zeros_may_lack) {
    return *reference->Compare(OnDevice(c), SparseCheck::kFp32, zeros_may_lack);
  };
  EXPECT_TRUE(errors(right, false).ok());
  HostCsr<float> other = right;
  other.values[17] *= 1.001f;
  EXPECT_EQ(errors(other, false).values, 1);
  other = right;
  other.values[17] = std::nanf("");
  EXPECT_EQ(errors(other, false).values, 1);
  other = right;
  other.column_indices.pop_back();
  other.values.pop_back();
  --other.row_offsets.back();
  EXPECT_EQ(errors(other, false).pattern, 1);
  // An entry that is not near 0 was not dropped as a zero.
  EXPECT_EQ(errors(other, true).values, 1);
}

}  // namespace
}  // namespace intrawarp::baselines
