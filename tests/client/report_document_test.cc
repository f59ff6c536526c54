// SPDX-License-Identifier: Apache-2.0
#include "client/cli/report_document.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "google/protobuf/text_format.h"

namespace intrawarp::cli {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

std::vector<std::pair<std::string, std::string>> ComputationOf(const std::string& text) {
  v1::Report report;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &report));
  for (const io::ReportSection& section : ReportDocumentOf(ReportToJson("affine,ffd", report)).sections) {
    if (section.heading == "Computation") return section.rows;
  }
  return {};
}

TEST(ReportDocumentTest, EachStageHasItsLevelsAndItsSecondLayer) {
  const std::string start = R"pb(
    options {
      stages { affine { metric: METRIC_SSD } }
      stages { ffd { metric: METRIC_SSD } }
    }
    stages { levels { size: 8 size: 9 size: 1 iterations: 12 value_before: 0.5 value_after: 0.25 } }
  )pb";
  const std::string second = "part of the image in the second layer";
  EXPECT_THAT(ComputationOf(start + "stages { second_layer_fraction: 0.3125 }"),
              AllOf(Contains(Pair("affine, ssd, 8x9x1", "12 iterations, value 0.5 to 0.25")),
                    Contains(Pair(second, "0.3125"))));
  EXPECT_THAT(ComputationOf(start + "stages { second_layer_fraction: 0 }"), Contains(Pair(second, "0")));
  EXPECT_THAT(ComputationOf(start + "stages { }"), AllOf(Contains(Key("device")), Not(Contains(Key(second)))));
}

}  // namespace
}  // namespace intrawarp::cli
