// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/caller.h"

#include <gtest/gtest.h>

#include <memory>

#include "server/base/seams.h"

namespace intrawarp::server {
namespace {

const Identity kAnn{"ann", Role::kFrame};

class CallerTest : public testing::Test {
 protected:
  const Seams seams_ = SystemSeams();
  AuditTrail trail_{seams_};
  CallContexts contexts_{trail_};
};

TEST_F(CallerTest, ACallIsNobodysUntilItsCallerIsNoted) {
  grpc::CallbackServerContext* const call = contexts_.NewCallbackServerContext();
  EXPECT_EQ(CallerOf(*call), Nobody());
  EXPECT_EQ(TraceOf(*call), "");
  SetCaller(*call, kAnn);
  EXPECT_EQ(CallerOf(*call), kAnn);
  SetTrace(*call, "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(TraceOf(*call), "0af7651916cd43dd8448eb211c80319c");
  contexts_.Release(call);
}

TEST_F(CallerTest, EachCallHasItsOwn) {
  grpc::CallbackServerContext* const first = contexts_.NewCallbackServerContext();
  grpc::CallbackServerContext* const second = contexts_.NewCallbackServerContext();
  SetCaller(*first, kAnn);
  SetTrace(*first, "1");
  EXPECT_EQ(CallerOf(*second), Nobody());
  EXPECT_EQ(TraceOf(*second), "");
  EXPECT_NE(AuditOf(*first), AuditOf(*second));
  EXPECT_EQ(AuditOf(*first), AuditOf(*first));
}

// gRPC's own services, say.
TEST_F(CallerTest, AContextOfAnotherMakerHasNoneAndTakesNone) {
  grpc::CallbackServerContext call, other;
  SetCaller(call, kAnn);
  SetTrace(call, "1");
  EXPECT_EQ(CallerOf(call), Nobody());
  EXPECT_EQ(TraceOf(call), "");
  ASSERT_NE(AuditOf(call), nullptr);
  EXPECT_EQ(AuditOf(call), AuditOf(other)) << "the one that records nothing";
  AuditOf(call)->Name("volume", "volumes/a");
}

TEST_F(CallerTest, TheAuditOutlivesItsCall) {
  grpc::CallbackServerContext* const call = contexts_.NewCallbackServerContext();
  const std::shared_ptr<CallAudit> audit = AuditOf(*call);
  EXPECT_EQ(audit.use_count(), 2);
  contexts_.Release(call);
  EXPECT_EQ(audit.use_count(), 1) << "the context is gone";
  audit->Name("volume", "volumes/a");
}

TEST_F(CallerTest, WhatNobodyGaveBackGoesWithTheMaker) {
  auto contexts = std::make_unique<CallContexts>(trail_);
  const std::shared_ptr<CallAudit> audit = AuditOf(*contexts->NewCallbackServerContext());
  contexts.reset();
  EXPECT_EQ(audit.use_count(), 1);
}

TEST_F(CallerTest, AContextIsGivenBackOnceAndToItsMaker) {
  CallContexts others(trail_);
  grpc::CallbackServerContext* const call = contexts_.NewCallbackServerContext();
  const std::shared_ptr<CallAudit> audit = AuditOf(*call);
  others.Release(call);
  EXPECT_EQ(audit.use_count(), 2) << "it is not theirs";
  contexts_.Release(call);
  contexts_.Release(call);
  EXPECT_EQ(audit.use_count(), 1);
}

}  // namespace
}  // namespace intrawarp::server
