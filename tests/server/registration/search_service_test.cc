// SPDX-License-Identifier: Apache-2.0
// The discrete search over the wire: by itself, as a start of ffd, and with requests that are refused.
#include "tests/server/deformed_pair.h"

namespace intrawarp::server {
namespace {

class SearchServiceTest : public DeformedPairTest {
 protected:
  using DeformedPairTest::DeformedPairTest;
  static v1::RegisterRequest Request() {
    v1::RegisterRequest request;
    request.set_fixed("volumes/fixed");
    request.set_moving("volumes/moving");
    request.mutable_options()->add_stages()->mutable_search();
    for (const double entry : {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}) {
      request.mutable_options()->mutable_initial_affine()->add_values(entry);
    }
    request.mutable_options()->set_keep_deformation(true);
    return request;
  }
};
INTRAWARP_INSTANTIATE_DEVICE_TEST(SearchServiceTest);

TEST_P(SearchServiceTest, GivesAControlGridAndSaysWhatItTook) {
  PutPair();
  const RegisterAnswer answer = Register(Request());
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  const v1::Report& report = answer.result->report();
  ASSERT_EQ(report.stages_size(), 1);
  ASSERT_EQ(report.stages(0).levels_size(), 1);
  EXPECT_LT(report.stages(0).levels(0).value_after(), report.stages(0).levels(0).value_before());
  const v1::SearchStage& taken = report.options().stages(0).search();
  EXPECT_GT(taken.node_mm(), 0);
  EXPECT_GT(taken.range_mm(), taken.node_mm());
  EXPECT_GT(report.after().ncc(), report.before().ncc());
  EXPECT_GT(report.jacobian().min(), 0);
  EXPECT_EQ(Get(Id(answer.result->transform())).kind(), v1::TRANSFORM_KIND_CONTROL_GRID);
}

TEST_P(SearchServiceTest, FfdGoesOnFromItWithTheWishesOfBoth) {
  PutPair();
  v1::RegisterRequest request = Request();
  request.mutable_options()->mutable_stages(0)->mutable_search()->set_node_mm(12);
  request.mutable_options()->mutable_stages(0)->mutable_search()->set_range_mm(24);
  request.mutable_options()->add_stages()->mutable_ffd()->set_iterations(20);
  const RegisterAnswer alone = Register(Request()), both = Register(request);
  ASSERT_TRUE(alone.status.ok()) << alone.status.error_message();
  ASSERT_TRUE(both.status.ok()) << both.status.error_message();
  const v1::Report& report = both.result->report();
  ASSERT_EQ(report.stages_size(), 2);
  EXPECT_EQ(report.options().stages(0).search().node_mm(), 12);
  EXPECT_EQ(report.options().stages(0).search().range_mm(), 24);
  EXPECT_GT(report.after().ncc(), alone.result->report().after().ncc());
}

TEST_P(SearchServiceTest, SaysWhatIsWrong) {
  PutPair();
  v1::RegisterRequest request = Request();
  request.mutable_options()->mutable_stages(0)->mutable_search()->set_node_mm(-1);
  EXPECT_STATUS(Register(request).status, grpc::INVALID_ARGUMENT, "options.stages[0].search.node_mm: ");
  request = Request();
  request.mutable_options()->mutable_stages(0)->mutable_search()->set_range_mm(1e9);
  EXPECT_STATUS(Register(request).status, grpc::INVALID_ARGUMENT, "options.stages[0].search.range_mm: ");
  request = Request();
  request.mutable_options()->add_stages()->mutable_log_demons();
  EXPECT_STATUS(Register(request).status, grpc::INVALID_ARGUMENT, "options.stages[1].");
}

}  // namespace
}  // namespace intrawarp::server
