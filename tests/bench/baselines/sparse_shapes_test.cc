// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/baselines/sparse_shapes.h"

#include <cmath>
#include <utility>

#include "tests/bench/sparse_generators.h"
#include "tests/engine/device_test.h"

namespace intrawarp::baselines {
namespace {

int64_t ProductEntries(const HostCsr<double>& a) {
  std::vector<int32_t> seen(a.columns, -1);
  int64_t entries = 0;
  for (int32_t r = 0; r < a.rows; ++r) {
    for (int64_t i = a.row_offsets[r]; i < a.row_offsets[r + 1]; ++i) {
      const int32_t k = a.column_indices[i];
      for (int64_t j = a.row_offsets[k]; j < a.row_offsets[k + 1]; ++j) {
        entries += std::exchange(seen[a.column_indices[j]], r) != r;
      }
    }
  }
  return entries;
}

// Within a quarter of the table's count.
TEST(PaperMatricesTest, MadeOnesHaveTheShapesOfTheTable) {
  int made = 0;
  for (const PaperMatrix& published : PaperMatrices()) {
    if (published.make == nullptr) continue;
    SCOPED_TRACE(published.name);
    ++made;
    const HostCsr<double> a = published.make();
    ASSERT_OK(ValidateCsr(a));
    ASSERT_EQ(a.rows, a.columns);
    const auto near = [](int64_t got, int64_t expected) { return std::abs(std::log(1.0 * got / expected)) < 0.25; };
    EXPECT_TRUE(near(a.rows, published.rows)) << a.rows;
    EXPECT_TRUE(near(a.entries(), published.entries)) << a.entries();
    EXPECT_TRUE(near(CountProducts(a, a), published.products)) << CountProducts(a, a);
    // The larger ones take long.
    if (published.products > 100'000'000) continue;
    const int64_t entries = ProductEntries(a);
    EXPECT_TRUE(near(entries, published.c_entries)) << entries;
    if (!published.same_pattern) continue;
    EXPECT_EQ(a.entries(), published.entries);
    EXPECT_EQ(entries, published.c_entries);
  }
  EXPECT_EQ(made, 18);
}

TEST(PaperMatricesTest, HasNoMatrixWithoutFileOrShape) {
  bool from_file = true;
  for (const PaperMatrix& published : PaperMatrices()) {
    if (published.make != nullptr) continue;
    EXPECT_EQ(LoadPaperMatrix(published, "", &from_file).status().code(), absl::StatusCode::kNotFound);
    EXPECT_FALSE(from_file);
  }
}

TEST(PaperMatricesTest, FilesHaveTheCountsOfTheTable) {
  const char* folder = std::getenv("INTRAWARP_TEST_DATA");
  if (folder == nullptr) GTEST_SKIP() << "INTRAWARP_TEST_DATA is not set";
  for (const PaperMatrix& published : PaperMatrices()) {
    bool from_file = false;
    if (published.make != nullptr) continue;
    const auto a = LoadPaperMatrix(published, std::string(folder) + "/sparse", &from_file);
    ASSERT_OK(a) << a.status();
    EXPECT_TRUE(from_file);
    EXPECT_EQ(a->rows, published.rows) << published.name;
    EXPECT_EQ(a->entries(), published.entries) << published.name;
    EXPECT_EQ(CountProducts(*a, *a), published.products) << published.name;
    EXPECT_EQ(ProductEntries(*a), published.c_entries) << published.name;
  }
}

}  // namespace
}  // namespace intrawarp::baselines
