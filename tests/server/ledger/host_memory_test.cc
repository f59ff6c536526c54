// SPDX-License-Identifier: Apache-2.0
#include "server/ledger/host_memory.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace intrawarp::server {
namespace {

// Control groups in a folder of the test's own.
class HostMemoryTest : public testing::Test {
 protected:
  HostMemoryTest() {
    std::string name = (std::filesystem::temp_directory_path() / "host_memory_XXXXXX").string();
    root_ = mkdtemp(name.data());
    paths_ = {(root_ / "mount").string(), (root_ / "membership").string()};
  }
  ~HostMemoryTest() override { std::filesystem::remove_all(root_); }

  void Membership(const std::string& lines) const { std::ofstream(paths_.membership) << lines; }
  void Limit(const std::string& file, const std::string& content) const {
    const std::filesystem::path path = paths_.mount + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << content;
  }
  int64_t Asked() const { return HostMemoryLimit(paths_); }

  static int64_t Physical() { return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE); }

  std::filesystem::path root_;
  ControlGroupPaths paths_;
};

TEST_F(HostMemoryTest, WithoutControlGroupsItIsThePhysicalMemory) { EXPECT_EQ(Asked(), Physical()); }

TEST_F(HostMemoryTest, TheLimitOfVersion2Counts) {
  Membership("0::/pod/server\n");
  Limit("/pod/server/memory.max", "1000000\n");
  EXPECT_EQ(Asked(), 1000000);
}

TEST_F(HostMemoryTest, TheLeastLimitOfNestedGroupsCounts) {
  Membership("0::/slice/pod/server\n");
  Limit("/slice/memory.max", "3000000\n");
  Limit("/slice/pod/memory.max", "2000000\n");
  Limit("/slice/pod/server/memory.max", "max\n");
  EXPECT_EQ(Asked(), 2000000);
  Limit("/slice/memory.max", "1500000\n");
  EXPECT_EQ(Asked(), 1500000);
}

TEST_F(HostMemoryTest, InAContainerTheMountIsTheGroup) {
  Membership("0::/kubepods/of/the/host\n");
  Limit("/memory.max", "4000000\n");
  EXPECT_EQ(Asked(), 4000000);
  Membership("0::/\n");
  EXPECT_EQ(Asked(), 4000000);
}

TEST_F(HostMemoryTest, TheLimitOfVersion1Counts) {
  Membership("12:cpu,cpuacct:/a\n7:memory:/docker/x\n1:name=systemd:/b\n");
  Limit("/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Limit("/memory/docker/x/memory.limit_in_bytes", "5000000\n");
  EXPECT_EQ(Asked(), 5000000);
}

TEST_F(HostMemoryTest, NoLimitAndNonsenseCountAsNone) {
  Membership("0::/x\nnonsense\n");
  for (const char* content : {"max\n", "", "-5\n", "0\n", "12x\n", "99999999999999999999999\n"}) {
    Limit("/x/memory.max", content);
    EXPECT_EQ(Asked(), Physical()) << content;
  }
}

TEST_F(HostMemoryTest, AnUnreadableLimitCountsAsNone) {
  Membership("0::/x\n");
  std::filesystem::create_directories(paths_.mount + "/x/memory.max");  // a folder
  EXPECT_EQ(Asked(), Physical());
}

}  // namespace
}  // namespace intrawarp::server
