// SPDX-License-Identifier: Apache-2.0
#include "engine/sparse/csr.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/sparse_generators.h"
#include "tests/engine/device_test.h"
#include "tests/engine/sparse/reference.h"

namespace intrawarp {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(CsrTest, AcceptsEmptyShapes) {
  EXPECT_OK(ValidateCsr(HostCsr<float>()));
  EXPECT_OK(ValidateCsr(HostCsr<float>{3, 0, {0, 0, 0, 0}, {}, {}}));
  EXPECT_OK(ValidateCsr(HostCsr<float>{0, 7, {0}, {}, {}}));
  EXPECT_OK(ValidateCsr(HostCsr<double>{2, 3, {0, 0, 2}, {0, 2}, {1, 0}}));
}

TEST(CsrTest, ErrorsNameTheArray) {
  const auto error = [](const HostCsr<float>& m) {
    const absl::Status s = ValidateCsr(m);
    EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument);
    return Message(s);
  };
  EXPECT_THAT(error({-1, 1, {}, {}, {}}), StartsWith("rows: "));
  EXPECT_THAT(error({1, -1, {0, 0}, {}, {}}), StartsWith("columns: "));
  EXPECT_THAT(error({2, 2, {0, 1}, {0}, {1}}), StartsWith("row_offsets: 2 offsets"));
  EXPECT_THAT(error({1, 2, {1, 1}, {0}, {1}}), StartsWith("row_offsets: the first"));
  EXPECT_THAT(error({2, 2, {0, 2, 1}, {0}, {1}}), StartsWith("row_offsets: decrease after row 1"));
  EXPECT_THAT(error({1, 2, {0, 2}, {0}, {1}}), StartsWith("row_offsets: the last is 2"));
  EXPECT_THAT(error({2, 2, {0, std::numeric_limits<int64_t>::max(), 1}, {0}, {1}}), StartsWith("row_offsets: "));
  EXPECT_THAT(error({2, 2, {0, 1, 2}, {0, 2}, {1, 1}}), StartsWith("column_indices: row 1 has column 2"));
  EXPECT_THAT(error({2, 2, {0, 1, 2}, {0, -1}, {1, 1}}), StartsWith("column_indices: row 1 has column -1"));
  EXPECT_THAT(error({1, 3, {0, 2}, {1, 1}, {1, 1}}), HasSubstr("not strictly increasing"));
  EXPECT_THAT(error({1, 3, {0, 2}, {2, 1}, {1, 1}}), HasSubstr("not strictly increasing"));
  EXPECT_THAT(error({1, 3, {0, 1}, {2}, {}}), StartsWith("values: "));
}

TEST(CsrTest, FromCooSortsAndSums) {
  const HostCoo coo = {3, 4, {2, 0, 2, 0, 2, 0}, {3, 1, 0, 0, 3, 1}, {1, 2, 3, 4, 10, -2}};
  const auto csr = CsrFromCoo<double>(coo);
  ASSERT_OK(csr);
  EXPECT_EQ(*csr, (HostCsr<double>{3, 4, {0, 2, 2, 4}, {0, 1, 0, 3}, {4, 0, 3, 11}}));
}

TEST(CsrTest, DuplicatesAreSummedInFloat64) {
  const HostCoo coo = {1, 1, {0, 0, 0}, {0, 0, 0}, {1e8, 1, -1e8}};
  EXPECT_EQ(CsrFromCoo<float>(coo)->values, (std::vector<float>{1}));
}

TEST(CsrTest, FromCooOfShuffledEntries) {
  const HostCsr<double> m = RandomMatrix(67, 129, 0.1, 3);
  std::vector<std::pair<int32_t, int64_t>> order;
  for (int32_t r = 0; r < m.rows; ++r) {
    for (int64_t i = m.row_offsets[r]; i < m.row_offsets[r + 1]; ++i) order.emplace_back(r, i);
  }
  std::shuffle(order.begin(), order.end(), std::mt19937(4));
  HostCoo coo = {m.rows, m.columns, {}, {}, {}};
  for (const auto& [r, i] : order) {
    coo.row_indices.push_back(r);
    coo.column_indices.push_back(m.column_indices[i]);
    coo.values.push_back(m.values[i]);
  }
  EXPECT_EQ(*CsrFromCoo<double>(coo), m);
}

TEST(CsrTest, FromCooRefusesWhatIsOutOfRange) {
  const auto error = [](const HostCoo& coo) { return Message(CsrFromCoo<float>(coo).status()); };
  EXPECT_THAT(error({2, 2, {2}, {0}, {1}}), StartsWith("row_indices: entry 0"));
  EXPECT_THAT(error({2, 2, {0, -1}, {0, 0}, {1, 1}}), StartsWith("row_indices: entry 1"));
  EXPECT_THAT(error({2, 2, {0}, {2}, {1}}), StartsWith("column_indices: entry 0"));
  EXPECT_THAT(error({2, 2, {0}, {0, 1}, {1}}), StartsWith("column_indices: not as many"));
  EXPECT_THAT(error({2, 2, {0}, {0}, {}}), StartsWith("values: "));
  EXPECT_THAT(error({-2, 2, {}, {}, {}}), StartsWith("rows: "));
}

TEST(CsrTest, TransposeSwapsIndices) {
  const HostCsr<double> m = RandomMatrix(33, 70, 0.15, 5);
  const HostCsr<double> t = Transposed(m);
  ASSERT_OK(ValidateCsr(t));
  std::map<std::pair<int32_t, int32_t>, double> entries;
  for (int32_t r = 0; r < m.rows; ++r) {
    for (int64_t i = m.row_offsets[r]; i < m.row_offsets[r + 1]; ++i) entries[{m.column_indices[i], r}] = m.values[i];
  }
  ASSERT_EQ(t.entries(), static_cast<int64_t>(entries.size()));
  for (int32_t r = 0; r < t.rows; ++r) {
    for (int64_t i = t.row_offsets[r]; i < t.row_offsets[r + 1]; ++i) {
      EXPECT_EQ((entries[{r, t.column_indices[i]}]), t.values[i]);
    }
  }
  EXPECT_EQ(Transposed(t), m);
}

TEST(CsrTest, SizesThatOverflow) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(CsrBytes(1, kMax / 4, ValueType::kFloat64).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(CsrBytes(1, kMax / 12, ValueType::kFloat64).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(*CsrBytes(2, 3, ValueType::kFloat64), 3 * 8 + 3 * 12);
}

class CsrDeviceTest : public DeviceTest {};
INTRAWARP_INSTANTIATE_DEVICE_TEST(CsrDeviceTest);

TEST_P(CsrDeviceTest, UploadsAndDownloads) {
  for (const HostCsr<double>& m : {RandomMatrix(40, 31, 0.2, 8), HostCsr<double>(), RandomMatrix(5, 0, 1, 9)}) {
    const auto matrix = CsrMatrix::Upload(device(), ctx().stream(), m);
    ASSERT_OK(matrix);
    EXPECT_EQ(matrix->view().entries, m.entries());
    EXPECT_EQ(matrix->bytes(), *CsrBytes(m.rows, m.entries(), ValueType::kFloat64));
    EXPECT_EQ(*matrix->Download<double>(device(), ctx().stream()), m);
    EXPECT_FALSE(matrix->Download<float>(device(), ctx().stream()).ok());
  }
}

TEST_P(CsrDeviceTest, MatricesShareAPatternThatOutlivesTheFirst) {
  const HostCsr<double> m = RandomMatrix(40, 31, 0.2, 8);
  auto first = CsrMatrix::Upload(device(), ctx().stream(), m);
  ASSERT_OK(first);
  const std::vector<float> values(m.entries(), 0.5f);
  auto buffer = device().Allocate(values.size() * sizeof(float), ctx().stream());
  ASSERT_OK(buffer);
  ASSERT_OK(device().Copy(buffer->as<void>(), values.data(), values.size() * sizeof(float), ctx().stream()));
  const CsrMatrix second(first->pattern(), ValueType::kFloat32, *std::move(buffer));
  EXPECT_EQ(second.view().row_offsets, first->view().row_offsets);
  EXPECT_EQ(second.bytes(), *CsrBytes(m.rows, m.entries(), ValueType::kFloat32));
  *first = CsrMatrix();
  HostCsr<float> expected = CastValues<float>(m);
  expected.values = values;
  EXPECT_EQ(*second.Download<float>(device(), ctx().stream()), expected);
}

TEST_P(CsrDeviceTest, AMatrixWithoutAPatternHasNothing) {
  const CsrMatrix none;
  EXPECT_EQ(none.pattern(), nullptr);
  EXPECT_EQ(none.bytes(), 0);
  EXPECT_EQ(*none.Download<float>(device(), ctx().stream()), HostCsr<float>());
}

TEST_P(CsrDeviceTest, RefusesToUploadWhatIsNotValid) {
  const HostCsr<float> m = {2, 2, {0, 2, 1}, {0}, {1}};
  EXPECT_THAT(Message(CsrMatrix::Upload(device(), ctx().stream(), m).status()), StartsWith("row_offsets: "));
}

// The table that peers were measured on.
TEST(SparseGeneratorsTest, HaveTheSizesOfTheirTable) {
  struct Row {
    const char* name;
    int32_t rows;
    double entries, products, tolerance;
  };
  for (const Row& row :
       {Row{"fem27x3_25", 46875, 3.50e6, 268e6, 0.003}, Row{"stencil27_64", 262144, 6.86e6, 181e6, 0.003},
        Row{"fem27x6_18", 34992, 5.06e6, 759e6, 0.003}, Row{"band_9506", 9506, 1.17e6, 143e6, 0.006},
        Row{"lap2d_725", 525625, 2.63e6, 13.1e6, 0.003}, Row{"cage_130k", 130228, 2.03e6, 31.5e6, 0.01},
        Row{"rmat_500k", 524288, 1.48e6, 341e6, 0.03}}) {
    const auto m = MatrixByName(row.name, 1);
    ASSERT_OK(m);
    EXPECT_OK(ValidateCsr(*m));
    EXPECT_EQ(m->rows, row.rows) << row.name;
    EXPECT_NEAR(m->entries(), row.entries, row.tolerance * row.entries) << row.name;
    EXPECT_NEAR(CountProducts(*m, *m), row.products, row.tolerance * row.products) << row.name;
    EXPECT_GT(*std::min_element(m->values.begin(), m->values.end()), 0.5);
    EXPECT_LT(*std::max_element(m->values.begin(), m->values.end()), 1.5);
  }
  EXPECT_FALSE(MatrixByName("rma10", 1).ok());
}

}  // namespace
}  // namespace intrawarp
