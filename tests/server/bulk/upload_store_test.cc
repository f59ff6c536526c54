// SPDX-License-Identifier: Apache-2.0
#include "server/bulk/upload_store.h"

#include <gtest/gtest.h>

namespace intrawarp::server {
namespace {

class UploadWorkspaceTest : public testing::Test {
 protected:
  UploadWorkspaceTest() : ledger_({.capacity = {.workspace_bytes = 100}}) {
    workspace_ = std::make_shared<UploadWorkspace>(*ledger_.Admit({{.workspace_bytes = 60}}));
  }
  // A taker that waits holds `waiter`.
  void Take(std::shared_ptr<const Grant>& held, std::shared_ptr<int> waiter = nullptr) {
    workspace_->Take([&held, waiter](std::shared_ptr<const Grant> grant) { held = std::move(grant); });
  }

  Ledger ledger_;
  std::shared_ptr<UploadWorkspace> workspace_;
};

TEST_F(UploadWorkspaceTest, OneJobAtATimeHasIt) {
  std::shared_ptr<const Grant> first, second;
  Take(first);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->held().workspace_bytes, 60);
  Take(second);
  EXPECT_EQ(second, nullptr);
  first.reset();
  EXPECT_NE(second, nullptr);
  second.reset();
  Take(first);
  EXPECT_NE(first, nullptr);
}

TEST_F(UploadWorkspaceTest, TheLastWhoWaitsGetsIt) {
  std::shared_ptr<const Grant> first, second, third;
  Take(first);
  const auto waiter = std::make_shared<int>(0);
  Take(second, waiter);
  EXPECT_EQ(waiter.use_count(), 2);
  Take(third);
  EXPECT_EQ(waiter.use_count(), 1);
  first.reset();
  EXPECT_EQ(second, nullptr);
  EXPECT_NE(third, nullptr);
}

TEST_F(UploadWorkspaceTest, OutlivesItsUpload) {
  std::shared_ptr<const Grant> held;
  Take(held);
  workspace_.reset();
  EXPECT_EQ(ledger_.in_use(Resource::kWorkspace), 60);
  held.reset();
  EXPECT_EQ(ledger_.in_use(Resource::kWorkspace), 0);
}

}  // namespace
}  // namespace intrawarp::server
