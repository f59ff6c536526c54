// SPDX-License-Identifier: Apache-2.0
#include "client/igtl/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "client/igtl/control.h"
#include "client/igtl/frame_session.h"
#include "client/igtl/out_queue.h"

namespace intrawarp::igtl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Options, TheCommandLineCountsBeforeTheFile) {
  const std::string path = ::testing::TempDir() + "bridge.conf";
  std::ofstream(path) << "# a comment\nlisten = 127.0.0.1:1\nvolume = volumes/a\ntools = One,Two\nstart = false\n";
  const auto options = ParseOptions({"--config=" + path, "--volume=volumes/b"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->volume, "volumes/b");
  EXPECT_EQ(options->listen->port, 1);
  EXPECT_THAT(options->tools, ElementsAre("One", "Two"));
  EXPECT_FALSE(options->starts_at_once);
}

TEST(Options, RefusalsNameTheOption) {
  const auto refusal = [](std::vector<std::string> arguments) {
    arguments.push_back("--listen=127.0.0.1:0");
    arguments.push_back("--volume=volumes/a");
    return std::string(ParseOptions(arguments).status().message());
  };
  EXPECT_EQ(refusal({}), "");
  EXPECT_THAT(refusal({"--devices=127.0.0.1"}), HasSubstr("--devices"));
  EXPECT_THAT(refusal({"--send_warped=true", "--volume_role=fixed"}), HasSubstr("--send_warped"));
  EXPECT_THAT(refusal({"--device_prefix=LongerThanThirteen"}), HasSubstr("--device_prefix"));
  EXPECT_THAT(refusal({"--mapped_suffix=LongerThanThirteen"}), HasSubstr("--mapped_suffix"));
  EXPECT_THAT(refusal({"--method=affine,"}), HasSubstr("--method"));
  EXPECT_THAT(refusal({"--max_peers=0"}), HasSubstr("max_peers"));
  EXPECT_THAT(refusal({"--colour=red"}), HasSubstr("colour"));
}

TEST(Options, MethodsBecomeStages) {
  EXPECT_EQ(StagesOfMethod("auto")->stages_size(), 0);
  const auto stages = StagesOfMethod("rigid,affine,search,ffd,log-demons");
  ASSERT_TRUE(stages.ok());
  ASSERT_EQ(stages->stages_size(), 5);
  EXPECT_TRUE(stages->stages(2).has_search());
  EXPECT_TRUE(stages->stages(4).has_log_demons());
  EXPECT_FALSE(StagesOfMethod("auto,ffd").ok());
  EXPECT_FALSE(StagesOfMethod("").ok());
}

TEST(StrideFor, ThinsOutTheFinestAxisFirst) {
  Geometry grid;
  grid.size = {100, 100, 20};
  grid.spacing = {1, 1, 5};
  EXPECT_EQ(StrideFor(grid, 200000), (Int3{1, 1, 1}));
  EXPECT_EQ(StrideFor(grid, 50000), (Int3{2, 2, 1}));
  for (const int64_t nodes : {8, 100, 1000, 10000, 100000}) {
    const Int3 stride = StrideFor(grid, nodes);
    int64_t count = 1;
    for (int axis = 0; axis < 3; ++axis) count *= (grid.size[axis] + stride[axis] - 1) / stride[axis];
    EXPECT_LE(count, nodes);
  }
  grid.size = {100, 100, 1};
  EXPECT_EQ(StrideFor(grid, 2500), (Int3{2, 2, 1}));
}

TEST(RetryPause, DoublesUpToFiveSeconds) {
  EXPECT_EQ(RetryPause(1).count(), 250);
  EXPECT_EQ(RetryPause(2).count(), 500);
  EXPECT_EQ(RetryPause(5).count(), 4000);
  EXPECT_EQ(RetryPause(6).count(), 5000);
  EXPECT_EQ(RetryPause(1000000).count(), 5000);
}

TEST(OutQueue, ANewerMessageTakesThePlaceOfTheOlder) {
  const auto message = [](const char* key, const char* bytes) {
    return OutMessage{key, std::make_shared<const std::string>(bytes)};
  };
  OutQueue queue(2);
  EXPECT_EQ(queue.Push(message("a", "1")), OutQueue::Put::kAdded);
  EXPECT_EQ(queue.Push(message("b", "2")), OutQueue::Put::kAdded);
  EXPECT_EQ(queue.Push(message("a", "3")), OutQueue::Put::kReplaced);
  EXPECT_EQ(queue.Push(message("c", "4")), OutQueue::Put::kRefused);
  EXPECT_EQ(*queue.Pop().bytes, "3");
  EXPECT_EQ(*queue.Pop().bytes, "2");
  EXPECT_TRUE(queue.empty());
}

TEST(Control, ArgumentsAreTextOrTheValueOfAnElement) {
  EXPECT_EQ(ArgumentOf(" volumes/ct \n"), "volumes/ct");
  EXPECT_EQ(ArgumentOf("<Command><Parameter Name=\"x\" Value=\"affine\"/></Command>"), "affine");
  EXPECT_EQ(ArgumentOf("<Command/>"), "");
  EXPECT_EQ(ArgumentOf("<Command Value=\"cut"), "cut");
  EXPECT_EQ(ArgumentOf(""), "");
  EXPECT_THAT(ResultXml(false, "a \"<&>\""),
              HasSubstr("\"false\"><Parameter Name=\"Message\" Value=\"a &quot;&lt;&amp;&gt;&quot;\""));
}

}  // namespace
}  // namespace intrawarp::igtl
