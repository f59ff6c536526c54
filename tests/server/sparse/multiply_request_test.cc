// SPDX-License-Identifier: Apache-2.0
#include "server/sparse/multiply_request.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/status/errors.h"

namespace intrawarp::server {
namespace {

const Identity kAnn{"ann", Role::kFrame}, kBob{"bob", Role::kFrame};

class MultiplyRequestTest : public testing::Test {
 protected:
  MultiplyRequestTest() {
    request_.set_a("sparseMatrices/a");
    request_.set_b("sparseMatrices/b");
    for (const char* id : {"a", "b", "m", "d"}) Put(id, ValueType::kFloat32);
    for (const char* id : {"a64", "b64"}) Put(id, ValueType::kFloat64);
  }

  // A matrix whose memory nobody reads.
  std::shared_ptr<const StoredMatrix> Put(const std::string& id, ValueType type) {
    const auto matrix = std::make_shared<StoredMatrix>();
    matrix->id = id;
    matrix->owner = "ann";
    matrix->matrix = CsrMatrix({.rows = 3, .columns = 5, .entries = 7}, type, Buffer(), Buffer(), Buffer());
    EXPECT_TRUE(matrices_.Insert(matrix).ok());
    return matrix;
  }
  v1::MultiplyOptions& options() { return *request_.mutable_options(); }
  absl::StatusOr<ProductTask> Resolve(const Identity& caller = kAnn) {
    return ResolveProduct(request_, matrices_, caller);
  }
  void ExpectError(absl::StatusCode code, const std::string& field, const Identity& caller = kAnn) {
    const absl::Status status = Resolve(caller).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(FieldOf(status), field);
  }

  MatrixStore matrices_;
  v1::MultiplyRequest request_;
};

TEST_F(MultiplyRequestTest, WhatIsNotSetIsResolved) {
  const absl::StatusOr<ProductTask> task = Resolve();
  ASSERT_TRUE(task.ok()) << task.status();
  EXPECT_EQ(task->a->id, "a");
  EXPECT_EQ(task->b->id, "b");
  EXPECT_EQ(task->mask, nullptr);
  EXPECT_EQ(task->addend, nullptr);
  EXPECT_FALSE(task->options.mask || task->options.addend);
  EXPECT_EQ(task->options.precision, MultiplyPrecision::kFp32);
  EXPECT_EQ(task->options.semiring, Semiring::kPlusTimes);
  EXPECT_FALSE(task->resident_id || task->ttl);
  const v1::MultiplyOptions& resolved = task->resolved;
  EXPECT_EQ(resolved.precision(), v1::PRECISION_FP32);
  EXPECT_EQ(resolved.semiring(), v1::SEMIRING_PLUS_TIMES);
  EXPECT_TRUE(resolved.has_transpose_a() && resolved.has_complement_mask() && resolved.has_alpha());
  EXPECT_EQ(resolved.alpha(), 1);
  EXPECT_FALSE(resolved.has_beta()) << "there is no addend";
}

TEST_F(MultiplyRequestTest, EveryPrecisionIsTakenForItsType) {
  const std::map<v1::Precision, MultiplyPrecision> precisions = {{v1::PRECISION_FP16, MultiplyPrecision::kFp16},
                                                                 {v1::PRECISION_BF16, MultiplyPrecision::kBf16},
                                                                 {v1::PRECISION_TF32, MultiplyPrecision::kTf32},
                                                                 {v1::PRECISION_FP32, MultiplyPrecision::kFp32},
                                                                 {v1::PRECISION_FP64, MultiplyPrecision::kFp64}};
  ASSERT_EQ(static_cast<int>(precisions.size()) + 1, v1::Precision_descriptor()->value_count());
  for (const auto& [value, precision] : precisions) {
    options().set_precision(value);
    const std::string bits = value == v1::PRECISION_FP64 ? "64" : "";
    request_.set_a("sparseMatrices/a" + bits);
    request_.set_b("sparseMatrices/b" + bits);
    const absl::StatusOr<ProductTask> task = Resolve();
    ASSERT_TRUE(task.ok()) << task.status();
    EXPECT_EQ(task->options.precision, precision);
    EXPECT_EQ(task->resolved.precision(), value);
    // The other type of values.
    request_.set_b(bits.empty() ? "sparseMatrices/b64" : "sparseMatrices/b");
    ExpectError(absl::StatusCode::kInvalidArgument, "b");
    request_.set_a(bits.empty() ? "sparseMatrices/a64" : "sparseMatrices/a");
    ExpectError(absl::StatusCode::kInvalidArgument, "a");
  }
}

TEST_F(MultiplyRequestTest, EverySemiringIsTaken) {
  const std::map<v1::Semiring, Semiring> semirings = {{v1::SEMIRING_PLUS_TIMES, Semiring::kPlusTimes},
                                                      {v1::SEMIRING_OR_AND, Semiring::kOrAnd},
                                                      {v1::SEMIRING_MIN_PLUS, Semiring::kMinPlus}};
  ASSERT_EQ(static_cast<int>(semirings.size()) + 1, v1::Semiring_descriptor()->value_count());
  for (const auto& [value, semiring] : semirings) {
    options().set_semiring(value);
    const absl::StatusOr<ProductTask> task = Resolve();
    ASSERT_TRUE(task.ok()) << task.status();
    EXPECT_EQ(task->options.semiring, semiring);
    EXPECT_EQ(task->resolved.semiring(), value);
  }
}

TEST_F(MultiplyRequestTest, ValuesOfAnotherVersionAreNotGuessed) {
  options().set_precision(static_cast<v1::Precision>(1000));
  ExpectError(absl::StatusCode::kUnimplemented, "options.precision");
  options().set_precision(v1::PRECISION_FP32);
  options().set_semiring(static_cast<v1::Semiring>(-1));
  ExpectError(absl::StatusCode::kUnimplemented, "options.semiring");
}

TEST_F(MultiplyRequestTest, MaskAddendAndScalarsReachTheEngine) {
  options().set_mask("sparseMatrices/m");
  options().set_complement_mask(true);
  options().set_transpose_a(true);
  options().set_addend("sparseMatrices/d");
  options().set_alpha(2);
  options().set_beta(-3);
  const absl::StatusOr<ProductTask> task = Resolve();
  ASSERT_TRUE(task.ok()) << task.status();
  EXPECT_EQ(task->mask->id, "m");
  EXPECT_EQ(task->addend->id, "d");
  EXPECT_TRUE(task->options.mask.has_value() && task->options.addend.has_value());
  EXPECT_TRUE(task->options.complement_mask && task->options.transpose_a);
  EXPECT_EQ(task->options.alpha, 2);
  EXPECT_EQ(task->options.beta, -3);
  EXPECT_EQ(task->resolved.SerializeAsString(), [this] {
    v1::MultiplyOptions all = options();
    all.set_precision(v1::PRECISION_FP32);
    all.set_semiring(v1::SEMIRING_PLUS_TIMES);
    all.set_reuse_plan(false);
    return all.SerializeAsString();
  }());
  options().clear_beta();
  EXPECT_EQ(Resolve()->resolved.beta(), 1) << "with an addend it is told";
}

TEST_F(MultiplyRequestTest, ScalarsAreFiniteAndBetaHasAnAddend) {
  for (const double value : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    options().set_alpha(value);
    ExpectError(absl::StatusCode::kInvalidArgument, "options.alpha");
    options().clear_alpha();
    options().set_addend("sparseMatrices/d");
    options().set_beta(-value);
    ExpectError(absl::StatusCode::kInvalidArgument, "options.beta");
  }
  options().set_beta(1);
  EXPECT_TRUE(Resolve().ok());
  options().clear_addend();
  ExpectError(absl::StatusCode::kInvalidArgument, "options.beta");
}

TEST_F(MultiplyRequestTest, AMatrixThatIsNotThereIsNamedByItsField) {
  const auto spoiled = [this](const char* name) {
    for (std::string* field :
         {request_.mutable_a(), request_.mutable_b(), options().mutable_mask(), options().mutable_addend()}) {
      const std::string before = *field;
      *field = name;
      EXPECT_FALSE(Resolve().ok()) << field;
      *field = before;
    }
  };
  spoiled("sparseMatrices/none");
  spoiled("volumes/a");
  request_.set_b("volumes/b");
  ExpectError(absl::StatusCode::kInvalidArgument, "b");
  request_.set_b("sparseMatrices/b");
  options().set_mask("m");
  ExpectError(absl::StatusCode::kInvalidArgument, "options.mask");
  options().clear_mask();
  options().set_addend("d");
  ExpectError(absl::StatusCode::kInvalidArgument, "options.addend");
  options().clear_addend();
  EXPECT_EQ(Resolve(kBob).status(), NotFound("sparseMatrices/a")) << "it is another's";
}

TEST_F(MultiplyRequestTest, AProductIsKeptUnderAnIdThatIsFree) {
  request_.mutable_keep();
  EXPECT_EQ(Resolve()->resident_id, "");
  request_.mutable_keep()->set_id("c");
  request_.mutable_keep()->mutable_ttl()->set_seconds(60);
  const absl::StatusOr<ProductTask> task = Resolve();
  ASSERT_TRUE(task.ok()) << task.status();
  EXPECT_EQ(task->resident_id, "c");
  EXPECT_EQ(task->ttl, std::chrono::seconds(60));
  request_.mutable_keep()->set_id("m");
  EXPECT_EQ(Resolve().status(), AlreadyExists("sparseMatrices/m"));
  request_.mutable_keep()->set_id("../c");
  ExpectError(absl::StatusCode::kInvalidArgument, "keep.id");
  request_.mutable_keep()->clear_id();
  for (const int64_t seconds : {int64_t{0}, int64_t{-1}, int64_t{366 * 24 * 3600 + 1}}) {
    request_.mutable_keep()->mutable_ttl()->set_seconds(seconds);
    ExpectError(absl::StatusCode::kInvalidArgument, "keep.ttl");
  }
}

TEST(InMultiplyRequest, OperandsStandByThemselvesAndTheRestIsAnOption) {
  EXPECT_EQ(FieldOf(InMultiplyRequest(InvalidField("a", "is wide"))), "a");
  EXPECT_EQ(FieldOf(InMultiplyRequest(InvalidField("b", "is high"))), "b");
  EXPECT_EQ(FieldOf(InMultiplyRequest(InvalidField("mask", "is wide"))), "options.mask");
  EXPECT_EQ(FieldOf(InMultiplyRequest(InvalidField("alpha", "is not 1"))), "options.alpha");
}

TEST(TranspositionBytes, OnlyATranspositionTakesMemoryOfItsOwn) {
  const ConstPatternView a = {.rows = 3, .columns = 5, .entries = 7};
  MultiplyOptions options;
  EXPECT_EQ(TranspositionBytes(a, options), 0);
  options.transpose_a = true;
  // Twice 5 columns and one offset of 8 bytes; 12 bytes for each of 7 entries.
  EXPECT_EQ(TranspositionBytes(a, options), 2 * 6 * 8 + 7 * 12);
}

TEST_F(MultiplyRequestTest, AReusedPlanHasNeitherMaskNorAddend) {
  EXPECT_FALSE(Resolve()->reuse_plan);
  EXPECT_TRUE(Resolve()->resolved.has_reuse_plan());
  options().set_reuse_plan(true);
  EXPECT_TRUE(Resolve()->reuse_plan);
  EXPECT_TRUE(Resolve()->resolved.reuse_plan());
  options().set_mask("sparseMatrices/m");
  ExpectError(absl::StatusCode::kInvalidArgument, "options.reuse_plan");
  options().clear_mask();
  options().set_addend("sparseMatrices/d");
  ExpectError(absl::StatusCode::kInvalidArgument, "options.reuse_plan");
}

// R is 2 x 3, A 3 x 5 and P 5 x 4, so that C is 2 x 4.
class TripleRequestTest : public testing::Test {
 protected:
  TripleRequestTest() {
    request_.set_r("sparseMatrices/r");
    request_.set_a("sparseMatrices/a");
    request_.set_p("sparseMatrices/p");
    Put("r", 2, 3);
    Put("a", 3, 5);
    Put("a_turned", 5, 3);
    Put("square", 5, 5);
    Put("p", 5, 4);
    Put("c", 2, 4);
    Put("galerkin", 4, 4);
    Put("p64", 5, 4, ValueType::kFloat64);
    Put("r64", 2, 3, ValueType::kFloat64);
    Put("c64", 2, 4, ValueType::kFloat64);
  }
  void Put(const std::string& id, int32_t rows, int32_t columns, ValueType type = ValueType::kFloat32) {
    const auto matrix = std::make_shared<StoredMatrix>();
    matrix->id = id;
    matrix->owner = "ann";
    matrix->matrix = CsrMatrix({.rows = rows, .columns = columns, .entries = 1}, type, Buffer(), Buffer(), Buffer());
    EXPECT_TRUE(matrices_.Insert(matrix).ok());
  }
  v1::MultiplyOptions& options() { return *request_.mutable_options(); }
  absl::StatusOr<ProductTask> Resolve() { return ResolveProduct(request_, matrices_, kAnn); }
  void ExpectError(const std::string& field, absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    const absl::Status status = Resolve().status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(FieldOf(status), field);
  }

  MatrixStore matrices_;
  v1::MultiplyTripleRequest request_;
};

TEST_F(TripleRequestTest, ThreeFactorsAreFound) {
  const absl::StatusOr<ProductTask> task = Resolve();
  ASSERT_TRUE(task.ok()) << task.status();
  EXPECT_TRUE(task->is_triple);
  EXPECT_EQ(task->r->id, "r");
  EXPECT_EQ(task->a->id, "a");
  EXPECT_EQ(task->b->id, "p");
  EXPECT_EQ(InputNames(request_),
            (std::vector<std::string>{"sparseMatrices/r", "sparseMatrices/a", "sparseMatrices/p", "", ""}));
  EXPECT_EQ(InputsOf(*task),
            (std::vector<std::shared_ptr<const StoredMatrix>>{task->r, task->a, task->b, nullptr, nullptr}));
  EXPECT_FALSE(SecondOptions(*task).transpose_a);
  request_.clear_r();
  request_.set_a("sparseMatrices/square");
  const absl::StatusOr<ProductTask> galerkin = Resolve();
  ASSERT_TRUE(galerkin.ok()) << galerkin.status();
  EXPECT_EQ(galerkin->r, nullptr);
  EXPECT_FALSE(FirstOptions(*galerkin).transpose_a);
  EXPECT_TRUE(SecondOptions(*galerkin).transpose_a);
}

TEST_F(TripleRequestTest, EachProductHasItsOptions) {
  options().set_precision(v1::PRECISION_TF32);
  options().set_transpose_a(true);
  options().set_alpha(3);
  options().set_addend("sparseMatrices/c");
  options().set_beta(2);
  options().set_mask("sparseMatrices/c");
  request_.set_a("sparseMatrices/a_turned");
  const absl::StatusOr<ProductTask> task = Resolve();
  ASSERT_TRUE(task.ok()) << task.status();
  const MultiplyOptions first = FirstOptions(*task), second = SecondOptions(*task);
  EXPECT_EQ(first.precision, MultiplyPrecision::kTf32);
  EXPECT_TRUE(first.transpose_a);
  EXPECT_EQ(first.alpha, 1);
  EXPECT_FALSE(first.addend || first.mask);
  EXPECT_EQ(second.precision, MultiplyPrecision::kTf32);
  EXPECT_FALSE(second.transpose_a);
  EXPECT_EQ(second.alpha, 3);
  EXPECT_EQ(second.beta, 2);
  EXPECT_TRUE(second.addend && second.mask);
}

TEST_F(TripleRequestTest, EachWrongShapeAndTypeNamesItsField) {
  request_.set_p("sparseMatrices/a");
  ExpectError("p");
  request_.set_p("sparseMatrices/p");
  request_.set_r("sparseMatrices/c");
  ExpectError("a");
  request_.set_r("");
  ExpectError("a");
  request_.set_r("sparseMatrices/r64");
  ExpectError("r");
  request_.set_r("sparseMatrices/r");
  request_.set_p("sparseMatrices/p64");
  ExpectError("p");
  request_.set_p("sparseMatrices/p");
  options().set_transpose_a(true);
  ExpectError("p");
  options().clear_transpose_a();
  for (const std::string id : {"galerkin", "a"}) {
    options().set_mask("sparseMatrices/" + id);
    ExpectError("options.mask");
    options().clear_mask();
    options().set_addend("sparseMatrices/" + id);
    ExpectError("options.addend");
    options().clear_addend();
  }
  options().set_addend("sparseMatrices/c64");
  ExpectError("options.addend");
}

TEST_F(TripleRequestTest, WhatTheSecondProductWouldRefuseIsRefusedBeforeTheFirst) {
  options().set_complement_mask(true);
  ExpectError("options.mask");
  options().clear_complement_mask();
  options().set_semiring(v1::SEMIRING_MIN_PLUS);
  EXPECT_TRUE(Resolve().ok());
  options().set_alpha(2);
  ExpectError("options.alpha");
  options().clear_alpha();
  options().set_addend("sparseMatrices/c");
  ExpectError("options.addend");
}

TEST_F(TripleRequestTest, AMatrixThatIsNotThereIsNamed) {
  for (const auto set : {&v1::MultiplyTripleRequest::mutable_r, &v1::MultiplyTripleRequest::mutable_a,
                         &v1::MultiplyTripleRequest::mutable_p}) {
    const v1::MultiplyTripleRequest good = request_;
    *(request_.*set)() = "sparseMatrices/none";
    EXPECT_EQ(Resolve().status(), NotFound("sparseMatrices/none"));
    *(request_.*set)() = "none";
    EXPECT_EQ(Resolve().status().code(), absl::StatusCode::kInvalidArgument);
    request_ = good;
  }
  EXPECT_EQ(ResolveProduct(request_, matrices_, kBob).status(), NotFound("sparseMatrices/r"));
}

TEST(MultiplyEstimate, TheResultIsItsPatternAndItsValues) {
  MultiplyEstimate estimate;
  estimate.multiplications = 1;
  estimate.max_entries = 2;
  estimate.workspace_bytes = 4;
  estimate.plan_bytes = 8;
  estimate.value_bytes = 16;
  const v1::MultiplyEstimate to = EstimateToProto(estimate);
  EXPECT_EQ(to.multiplications(), 1);
  EXPECT_EQ(to.max_entries(), 2);
  EXPECT_EQ(to.workspace_bytes(), 4);
  EXPECT_EQ(to.result_bytes(), 24);
  EXPECT_EQ(EstimatedBytes(estimate), 28);
}

TEST(MultiplyEstimate, BytesDoNotOverflow) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  MultiplyEstimate estimate;
  estimate.workspace_bytes = kMost - 1;
  estimate.plan_bytes = 1;
  EXPECT_EQ(EstimatedBytes(estimate), kMost);
  estimate.value_bytes = 1;
  EXPECT_EQ(EstimatedBytes(estimate), kMost);
}

}  // namespace
}  // namespace intrawarp::server
