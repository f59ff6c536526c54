// SPDX-License-Identifier: Apache-2.0
#include "server/sparse/product_plans.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "server/store/resident_store.h"

namespace intrawarp::server {
namespace {

constexpr int64_t kPlanBytes = kLeastObjectBytes;

std::shared_ptr<const CsrPattern> NewPattern() { return std::make_shared<const CsrPattern>(); }

// Without memory of a device.
std::shared_ptr<HeldPlan> NewPlan(int64_t multiplications = 0) {
  MultiplyEstimate estimate;
  estimate.multiplications = multiplications;
  return std::make_shared<HeldPlan>(HeldPlan{Grant(), MultiplyPlan({}, {}, {}, CsrPattern(), nullptr), estimate});
}

class ProductPlansTest : public testing::Test {
 protected:
  explicit ProductPlansTest(int64_t plans = 1000)
      : ledger_({.devices = {{"0", {.resident_bytes = plans * kPlanBytes}, {}},
                             {"1", {.resident_bytes = plans * kPlanBytes}, {}}}}),
        plans_(ledger_) {}
  int64_t in_use(int device = 0) { return ledger_.use(Resource::kResident, device).in_use; }

  Ledger ledger_;
  ProductPlans plans_;
  const ProductKey key_ = {NewPattern(), NewPattern(), MultiplyOptions()};
};

TEST_F(ProductPlansTest, APlanServesProductsOfTheSamePatternsAndOptions) {
  EXPECT_EQ(plans_.Find(key_), nullptr);
  const auto plan = NewPlan(7);
  plans_.Insert(key_, 0, plan);
  EXPECT_EQ(plans_.Find(key_), plan);
  EXPECT_EQ(plans_.Find(key_)->estimate.multiplications, 7);

  std::vector<ProductKey> others(8, key_);
  others[0].a = NewPattern();
  others[1].b = NewPattern();
  std::swap(others[2].a, others[2].b);
  others[3].options.precision = MultiplyPrecision::kTf32;
  others[4].options.semiring = Semiring::kOrAnd;
  others[5].options.transpose_a = true;
  others[6].options.alpha = 2;
  others[7].options.many_executions = true;
  for (const ProductKey& other : others) EXPECT_EQ(plans_.Find(other), nullptr) << &other - others.data();
}

TEST_F(ProductPlansTest, ZerosOfBothSignsAreDifferentFactors) {
  ProductKey key = key_;
  key.options.alpha = 0;
  plans_.Insert(key, 0, NewPlan());
  key.options.alpha = -0.0;
  EXPECT_EQ(plans_.Find(key), nullptr);
}

TEST_F(ProductPlansTest, TheFirstPlanOfAKeyStays) {
  const auto first = NewPlan();
  plans_.Insert(key_, 0, first);
  plans_.Insert(key_, 0, NewPlan());
  EXPECT_EQ(plans_.Find(key_), first);
  EXPECT_EQ(plans_.size(), 1);
  EXPECT_EQ(in_use(), kPlanBytes);
}

TEST_F(ProductPlansTest, APlanGoesWithThePatternOfAnOperand) {
  for (const bool is_a : {true, false}) {
    ProductKey key = {NewPattern(), NewPattern(), MultiplyOptions()};
    plans_.Insert(key, 0, NewPlan());
    plans_.Expire();
    EXPECT_EQ(plans_.size(), 1);
    (is_a ? key.a : key.b) = nullptr;
    plans_.Expire();
    EXPECT_EQ(plans_.size(), 0);
    EXPECT_EQ(in_use(), 0);
  }
}

// The second operand of a triple product's second plan is the pattern that the first plan makes.
TEST_F(ProductPlansTest, APlanGoesWithAPatternThatOnlyAnotherPlanHeld) {
  std::shared_ptr<const CsrPattern> a = NewPattern();
  {
    const auto first = NewPlan();
    plans_.Insert({a, key_.b, MultiplyOptions()}, 0, first);
    plans_.Insert({key_.a, first->plan.ResultWith(Buffer()).pattern(), MultiplyOptions()}, 0, NewPlan());
  }
  plans_.Expire();
  EXPECT_EQ(plans_.size(), 2);
  a = nullptr;
  plans_.Expire();
  EXPECT_EQ(plans_.size(), 0);
}

TEST_F(ProductPlansTest, DroppingTakesTheOnesUsedLongestAgoOfTheDevice) {
  std::vector<ProductKey> keys;
  for (int i = 0; i < 4; ++i) {
    keys.push_back({NewPattern(), NewPattern(), MultiplyOptions()});
    plans_.Insert(keys.back(), i == 3 ? 1 : 0, NewPlan());
  }
  EXPECT_NE(plans_.Find(keys[0]), nullptr);
  EXPECT_EQ(plans_.EvictableBytes(0), 3 * kPlanBytes);
  EXPECT_EQ(plans_.EvictableBytes(1), kPlanBytes);
  plans_.Drop(0, 1);
  EXPECT_EQ(plans_.Find(keys[1]), nullptr);
  EXPECT_EQ(in_use(), 2 * kPlanBytes);
  const auto used = plans_.Find(keys[0]);
  EXPECT_EQ(plans_.EvictableBytes(0), kPlanBytes);
  plans_.Drop(0, 100 * kPlanBytes);
  EXPECT_EQ(plans_.Find(keys[0]), used) << "somebody uses it";
  EXPECT_EQ(plans_.Find(keys[2]), nullptr);
  EXPECT_NE(plans_.Find(keys[3]), nullptr) << "of another device";
  EXPECT_EQ(in_use(1), kPlanBytes);
}

TEST_F(ProductPlansTest, ThereAreOnlySoMany) {
  std::vector<ProductKey> keys;
  for (size_t i = 0; i <= ProductPlans::kMostPlans; ++i) {
    keys.push_back({NewPattern(), NewPattern(), MultiplyOptions()});
    plans_.Insert(keys.back(), 0, NewPlan());
  }
  EXPECT_EQ(plans_.size(), static_cast<int64_t>(ProductPlans::kMostPlans));
  EXPECT_EQ(plans_.Find(keys[0]), nullptr);
  EXPECT_NE(plans_.Find(keys[1]), nullptr);
}

class FewPlansTest : public ProductPlansTest {
 protected:
  FewPlansTest() : ProductPlansTest(1) {}
};

TEST_F(FewPlansTest, APlanTakesNoMemoryThatIsInUse) {
  bool asked = false;
  ledger_.set_reclaim([&asked](int, int64_t) { asked = true; });
  {
    const absl::StatusOr<Grant> object = ledger_.Admit({{.resident_bytes = 1}});
    ASSERT_TRUE(object.ok());
    plans_.Insert(key_, 0, NewPlan());
    EXPECT_EQ(plans_.size(), 0);
    EXPECT_FALSE(asked) << "nothing has to go for a plan";
  }
  plans_.Insert(key_, 0, NewPlan());
  EXPECT_EQ(plans_.size(), 1);
}

}  // namespace
}  // namespace intrawarp::server
