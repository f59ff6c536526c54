// SPDX-License-Identifier: Apache-2.0
#include "client/cli/files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace intrawarp::cli {
namespace {

TEST(NaturalLessTest, CountsAsPeopleDo) {
  const std::vector<std::string> ordered = {
      "a", "a01", "a1", "a2", "a2b1", "a10", "f0.nii", "f8.nii", "f16.nii", "f24.nii", "f100000000000000000000.nii"};
  for (size_t i = 0; i < ordered.size(); ++i) {
    for (size_t j = 0; j < ordered.size(); ++j) {
      EXPECT_EQ(NaturalLess(ordered[i], ordered[j]), i < j) << ordered[i] << " " << ordered[j];
    }
  }
}

// Names with zeros in front keep the order that they have always had.
TEST(NaturalLessTest, PaddedNamesStayInOrder) {
  std::vector<std::string> names = {"010.nii", "002.nii", "001.nii.gz", "100.nii"};
  std::vector<std::string> plain = names;
  std::sort(plain.begin(), plain.end());
  std::sort(names.begin(), names.end(), NaturalLess);
  EXPECT_EQ(names, plain);
}

}  // namespace
}  // namespace intrawarp::cli
