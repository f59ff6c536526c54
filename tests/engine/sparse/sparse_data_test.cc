// SPDX-License-Identifier: Apache-2.0
// Products of public matrices: A A and A^T A, patterns exactly, values against float64.
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string>

#include "engine/sparse/multiply.h"
#include "io/format/matrix_market.h"
#include "tests/engine/device_test.h"
#include "tests/engine/sparse/reference.h"

namespace intrawarp {
namespace {

class SparseDataTest : public DeviceTest {
 protected:
  template <typename T>
  void ExpectProduct(const HostCsr<T>& a, const HostCsr<T>& b) {
    MultiplyOptions options;
    options.precision = sizeof(T) == 4 ? MultiplyPrecision::kFp32 : MultiplyPrecision::kFp64;
    const CsrMatrix on_device_a = *CsrMatrix::Upload(device(), ctx().stream(), a);
    const CsrMatrix on_device_b = *CsrMatrix::Upload(device(), ctx().stream(), b);
    const auto product = Multiply(ctx(), on_device_a.view(), on_device_b.view(), options);
    ASSERT_OK(product) << product.status();
    const HostCsr<T> c = *product->template Download<T>(device(), ctx().stream());
    ASSERT_OK(ValidateCsr(c));
    for (int32_t i = 0; i < c.rows; ++i) {
      int64_t p = c.row_offsets[i];
      const ReferenceRow row = ReferenceProductRow(a, b, i);
      ASSERT_EQ(c.row_offsets[i + 1] - p, static_cast<int64_t>(row.size())) << "row " << i;
      for (const auto& [column, e] : row) {
        ASSERT_EQ(c.column_indices[p], column) << "row " << i;
        // Terms may be subnormal.
        const double bound =
            2.0 * e.terms * (std::numeric_limits<T>::epsilon() * e.magnitude + std::numeric_limits<T>::denorm_min());
        ASSERT_NEAR(c.values[p++], e.value, bound) << "row " << i << " column " << column;
      }
    }
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(SparseDataTest);

TEST_P(SparseDataTest, SquaresAndNormalMatrices) {
  const char* folder = std::getenv("INTRAWARP_TEST_DATA");
  if (folder == nullptr) GTEST_SKIP() << "INTRAWARP_TEST_DATA is not set";
  int matrices = 0;
  for (const auto& file : std::filesystem::directory_iterator(std::filesystem::path(folder) / "sparse")) {
    const std::string name = file.path().filename().string();
    if (name.find(".mtx") == std::string::npos) continue;
    SCOPED_TRACE(name);
    const auto coo = io::ReadMatrixMarket(file.path().string());
    ASSERT_OK(coo) << coo.status();
    const HostCsr<float> f = *CsrFromCoo<float>(*coo);
    ExpectProduct(f, f);
    ++matrices;
    // The largest matrices take too long for the rest, and add no other shape.
    if (f.entries() > 60000) continue;
    const HostCsr<double> d = *CsrFromCoo<double>(*coo);
    ExpectProduct(d, d);
    ExpectProduct(Transposed(d), d);
  }
  EXPECT_GE(matrices, 17);
}

}  // namespace
}  // namespace intrawarp
