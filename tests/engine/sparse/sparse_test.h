// SPDX-License-Identifier: Apache-2.0
// The common parts of the tests of sparse products: matrices on the device, and options of a type's own precision.
#ifndef INTRAWARP_TESTS_ENGINE_SPARSE_SPARSE_TEST_H_
#define INTRAWARP_TESTS_ENGINE_SPARSE_SPARSE_TEST_H_

#include <utility>

#include "engine/sparse/multiply.h"
#include "tests/engine/device_test.h"

namespace intrawarp {

class SparseTest : public DeviceTest {
 protected:
  template <typename T>
  CsrMatrix Put(const HostCsr<T>& m) {
    auto matrix = CsrMatrix::Upload(device(), ctx().stream(), m);
    EXPECT_OK(matrix) << matrix.status();
    return *std::move(matrix);
  }
  template <typename T>
  static MultiplyOptions Options(Semiring semiring = Semiring::kPlusTimes) {
    MultiplyOptions options;
    options.precision = sizeof(T) == 4 ? MultiplyPrecision::kFp32 : MultiplyPrecision::kFp64;
    options.semiring = semiring;
    return options;
  }
};

}  // namespace intrawarp

#endif  // INTRAWARP_TESTS_ENGINE_SPARSE_SPARSE_TEST_H_
