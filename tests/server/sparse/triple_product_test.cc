// SPDX-License-Identifier: Apache-2.0
// R A P as one request, and products that take the plan of an earlier one, over the wire.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "server/sparse/product_plans.h"
#include "tests/server/matrix_client.h"
#include "tests/server/sparse/matrix_fixture.h"

namespace intrawarp::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
HostCsr<T> CsrOf(const Product& product) {
  EXPECT_TRUE(product.status.ok()) << product.status.error_message();
  if (!product.header) return HostCsr<T>();
  return CsrFromBytes<T>(product.header->shape(), product.bytes);
}

// The same entries as a matrix of doubles, for references.
HostCsr<double> ToDouble(const HostCsr<float>& csr) {
  return {csr.rows, csr.columns, csr.row_offsets, csr.column_indices, {csr.values.begin(), csr.values.end()}};
}

// R A P in float64, by the definition of each product.
Entries<double> TripleReference(const HostCsr<double>& r, const HostCsr<double>& a, const HostCsr<double>& p) {
  const Entries<double> ap = Reference(a, p);
  HostCoo coo;
  coo.rows = a.rows;
  coo.columns = p.columns;
  for (const auto& [place, value] : ap) {
    coo.row_indices.push_back(place.first);
    coo.column_indices.push_back(place.second);
    coo.values.push_back(value);
  }
  return Reference(r, *CsrFromCoo<double>(coo));
}

// Fractions of the whole numbers.
template <typename T>
HostCsr<T> Fractions(HostCsr<T> csr) {
  for (size_t i = 0; i < csr.values.size(); ++i) csr.values[i] /= static_cast<T>(i % 89 + 3);
  return csr;
}

void ExpectNear(const Entries<double>& c, const Entries<double>& reference, double tolerance) {
  ASSERT_EQ(c.size(), reference.size());
  double largest = 0, error = 0;
  for (const auto& [place, value] : reference) {
    ASSERT_EQ(c.count(place), 1u) << place.first << ", " << place.second;
    largest = std::max(largest, std::abs(value));
    error = std::max(error, std::abs(c.at(place) - value));
  }
  EXPECT_LE(error, tolerance * largest);
}

class TripleProductTest : public MatrixServiceTest {
 protected:
  TripleProductTest() {
    Put("r", r_);
    Put("a", a_);
    Put("p", p_);
    Put("square", square_);
  }
  std::string Scrape() {
    test_.WaitForUsage([](const v1::Usage& u) { return u.streams() == 0 && u.jobs() == 0; });
    return context().metrics.registry.Scrape();
  }

  const HostCsr<float> r_ = RandomCsr<float>(40, 120, 3, 1), a_ = RandomCsr<float>(120, 90, 6, 2),
                       p_ = RandomCsr<float>(90, 30, 2, 3), square_ = RandomCsr<float>(90, 90, 6, 4);
};

TEST_F(TripleProductTest, IsTheProductOfThreeFactors) {
  const Product product = Multiply(*stub_, TripleOf("r", "a", "p"));
  const HostCsr<float> c = CsrOf<float>(product);
  ASSERT_TRUE(product.result.has_value());
  EXPECT_EQ(c.rows, 40);
  EXPECT_EQ(c.columns, 30);
  // Whole numbers: exact.
  EXPECT_TRUE(EntriesOf(c) == TripleReference(ToDouble(r_), ToDouble(a_), ToDouble(p_)));

  const HostCsr<float> ap = CsrOf<float>(Multiply(*stub_, ProductOf("a", "p")));
  const v1::MultiplyReport& report = product.result->report();
  EXPECT_EQ(report.shape().SerializeAsString(), product.header->shape().SerializeAsString());
  EXPECT_EQ(report.intermediate().shape().rows(), 120);
  EXPECT_EQ(report.intermediate().shape().columns(), 30);
  EXPECT_EQ(report.intermediate().shape().entries(), ap.entries());
  EXPECT_GT(report.intermediate().estimate().multiplications(), 0);
  EXPECT_GT(report.estimate().multiplications(), 0);
  EXPECT_FALSE(report.plan_reused() || report.intermediate().plan_reused());
  std::vector<std::pair<int, int>> steps;
  for (const v1::MultiplyProgress& progress : product.progress) steps.push_back({progress.product(), progress.step()});
  using Steps = std::pair<int, int>;
  EXPECT_THAT(steps, ElementsAre(Steps(1, 1), Steps(1, 2), Steps(1, 3), Steps(2, 1), Steps(2, 2), Steps(2, 3)));
  EXPECT_EQ(product.progress[1].entries(), ap.entries());
  EXPECT_EQ(product.progress[3].entries(), 0);
  EXPECT_EQ(product.progress[4].entries(), c.entries());
  EXPECT_THAT(Names(),
              ElementsAre("sparseMatrices/a", "sparseMatrices/p", "sparseMatrices/r", "sparseMatrices/square"));
}

TEST_F(TripleProductTest, HasTheBitsOfTwoProducts) {
  Put("f", Fractions(square_));
  Put("g", Fractions(p_));
  v1::MultiplyRequest ap = ProductOf("f", "g");
  ap.mutable_keep()->set_id("fg");
  ASSERT_TRUE(Multiply(*stub_, ap).status.ok());
  v1::MultiplyRequest last = ProductOf("g", "fg");
  last.mutable_options()->set_transpose_a(true);
  const Product in_two = Multiply(*stub_, last), in_one = Multiply(*stub_, TripleOf("", "f", "g"));
  ASSERT_TRUE(in_one.status.ok()) << in_one.status.error_message();
  EXPECT_TRUE(in_one.bytes == in_two.bytes);
  const HostCsr<double> g = ToDouble(Fractions(p_));
  ExpectNear(EntriesOf(CsrOf<float>(in_one)), TripleReference(Transposed(g), ToDouble(Fractions(square_)), g), 1e-5);
}

TEST_F(TripleProductTest, InDouble) {
  const HostCsr<double> a = Fractions(RandomCsr<double>(60, 60, 5, 7)), p = Fractions(RandomCsr<double>(60, 14, 2, 8));
  Put("a64", a);
  Put("p64", p);
  v1::MultiplyTripleRequest request = TripleOf("", "a64", "p64");
  request.mutable_options()->set_precision(v1::PRECISION_FP64);
  ExpectNear(EntriesOf(CsrOf<double>(Multiply(*stub_, request))), TripleReference(Transposed(p), a, p), 1e-13);
}

TEST_F(TripleProductTest, OptionsReachTheRightProduct) {
  const HostCsr<double> square = ToDouble(square_), p = ToDouble(p_);
  const HostCsr<float> addend = RandomCsr<float>(30, 30, 4, 9);
  Put("d", addend);
  v1::MultiplyTripleRequest request = TripleOf("", "square", "p");
  v1::MultiplyOptions& options = *request.mutable_options();
  options.set_transpose_a(true);
  options.set_alpha(3);
  options.set_addend("sparseMatrices/d");
  options.set_beta(2);
  Entries<double> expected = TripleReference(Transposed(p), Transposed(square), p);
  for (auto& [place, value] : expected) value *= 3;
  for (const auto& [place, value] : EntriesOf(addend)) expected[place] += 2 * value;
  EXPECT_TRUE(EntriesOf(CsrOf<float>(Multiply(*stub_, request))) == expected);

  request = TripleOf("", "square", "p");
  request.mutable_options()->set_mask("sparseMatrices/d");
  expected = TripleReference(Transposed(p), square, p);
  Entries<double> masked;
  for (const auto& [place, value] : EntriesOf(addend)) {
    if (expected.count(place) != 0) masked[place] = expected[place];
  }
  EXPECT_TRUE(EntriesOf(CsrOf<float>(Multiply(*stub_, request))) == masked);
}

TEST_F(TripleProductTest, AKeptProductStaysAndARepetitionFindsIt) {
  v1::MultiplyTripleRequest request = TripleOf("", "square", "p");
  request.mutable_keep()->set_id("coarse");
  request.set_request_id("once");
  const Product first = Multiply(*stub_, request);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  EXPECT_FALSE(first.header.has_value());
  EXPECT_EQ(first.result->sparse_matrix().name(), "sparseMatrices/coarse");
  EXPECT_TRUE(DownloadMatrix(*bulk_, "sparseMatrices/coarse").bytes ==
              Multiply(*stub_, TripleOf("", "square", "p")).bytes);
  const Product again = Multiply(*stub_, request);
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(again.result->SerializeAsString(), first.result->SerializeAsString());
  // Another method's request is another request.
  v1::MultiplyRequest other = ProductOf("square", "p");
  other.set_request_id("once");
  other.mutable_keep();
  EXPECT_EQ(DetailsOf(Multiply(*stub_, other).status).reason, "REQUEST_ID_REUSED");
  int64_t multiplications = first.result->report().estimate().multiplications() +
                            first.result->report().intermediate().estimate().multiplications();
  EXPECT_THAT(Scrape(), HasSubstr("intrawarp_product_flops_total " + std::to_string(4 * multiplications) + "\n"));
}

TEST_F(TripleProductTest, EachWrongRequestNamesItsField) {
  using R = v1::MultiplyTripleRequest;
  const auto with = [](const std::function<void(R&)>& spoil) {
    R request = TripleOf("r", "a", "p");
    spoil(request);
    return request;
  };
  ExpectError(with([](R& r) { r.set_r("r"); }), grpc::INVALID_ARGUMENT, "sparseMatrices/{id}", "r");
  ExpectError(with([](R& r) { r.clear_a(); }), grpc::INVALID_ARGUMENT, "sparseMatrices/{id}", "a");
  ExpectError(with([](R& r) { r.clear_p(); }), grpc::INVALID_ARGUMENT, "sparseMatrices/{id}", "p");
  ExpectError(with([](R& r) { r.set_p("sparseMatrices/none"); }), grpc::NOT_FOUND, "sparseMatrices/none", "");
  ExpectError(with([](R& r) { r.set_p("sparseMatrices/r"); }), grpc::INVALID_ARGUMENT, "40 rows", "p");
  ExpectError(with([](R& r) { r.clear_r(); }), grpc::INVALID_ARGUMENT, "P^T", "a");
  ExpectError(with([](R& r) { r.mutable_options()->set_precision(v1::PRECISION_FP64); }), grpc::INVALID_ARGUMENT,
              "float32", "r");
  ExpectError(with([](R& r) { r.mutable_options()->set_mask("sparseMatrices/p"); }), grpc::INVALID_ARGUMENT, "90x30",
              "options.mask");
  ExpectError(with([](R& r) { r.set_detach(true); }), grpc::INVALID_ARGUMENT, "must be set", "request_id");
  ExpectError(with([](R& r) { r.mutable_keep()->set_id("a"); }), grpc::ALREADY_EXISTS, "sparseMatrices/a", "");
}

TEST_F(TripleProductTest, ACancelledOneLeavesNothing) {
  const v1::Usage before = test_.WaitForUsage([](const v1::Usage& u) { return u.streams() == 0 && u.jobs() == 0; });
  {
    grpc::ClientContext call;
    auto reader = stub_->MultiplyTriple(&call, TripleOf("r", "a", "p"));
    call.TryCancel();
    v1::MultiplyResponse response;
    while (reader->Read(&response)) {
    }
    EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
  }
  {
    grpc::ClientContext call;
    call.set_deadline(std::chrono::system_clock::now() - std::chrono::seconds(1));
    auto reader = stub_->MultiplyTriple(&call, TripleOf("r", "a", "p"));
    EXPECT_EQ(reader->Finish().error_code(), grpc::DEADLINE_EXCEEDED);
  }
  EXPECT_EQ(test_.WaitForUsage([](const v1::Usage& u) { return u.streams() == 0 && u.jobs() == 0; }).ShortDebugString(),
            before.ShortDebugString());
}

class SmallTripleTest : public MatrixServiceTest {
 protected:
  SmallTripleTest() : MatrixServiceTest(Options()) {}
  static ServerOptions Options() {
    ServerOptions options = TestServer::DefaultOptions();
    options.limits.resident_capacity_bytes = int64_t{1} << 20;
    return options;
  }
};

TEST_F(SmallTripleTest, EachProductIsRefusedWithItsEstimate) {
  Put("column", Full(600, 1, 2));
  Put("row", Full(1, 600, 3));
  Put("one", Full(1, 1, 1));
  // The first product is too large, then the second one.
  for (const auto& [request, product] :
       {std::make_pair(TripleOf("row", "column", "row"), "the first product takes up to"),
        std::make_pair(TripleOf("column", "one", "row"), "the second product takes up to")}) {
    const Product refused = Multiply(*stub_, request);
    EXPECT_STATUS(refused.status, grpc::FAILED_PRECONDITION, product);
    EXPECT_STATUS(refused.status, grpc::FAILED_PRECONDITION, "at most 360000 entries from 360000 multiplications");
    EXPECT_EQ(DetailsOf(refused.status).reason, "EXCEEDS_CAPACITY");
  }
  // What others hold now can be waited for.
  Ledger& ledger = context().ledger;
  absl::StatusOr<Grant> others = ledger.Admit({{.resident_bytes = ledger.available(Resource::kResident)}});
  ASSERT_TRUE(others.ok()) << others.status();
  const Product waits = Multiply(*stub_, TripleOf("", "one", "one"));
  EXPECT_EQ(waits.status.error_code(), grpc::RESOURCE_EXHAUSTED) << waits.status.error_message();
  EXPECT_EQ(DetailsOf(waits.status).reason, "MULTIPLY_MEMORY");
  *others = Grant();
  EXPECT_TRUE(Multiply(*stub_, TripleOf("", "one", "one")).status.ok());
}

class PlanReuseTest : public TripleProductTest {
 protected:
  // The square matrix with other values, which share its pattern or not.
  void PutValues(const std::string& id, bool shared) {
    HostCsr<float> csr = Fractions(square_);
    if (!shared) return Put(id, csr);
    const grpc::Status status =
        Upload(*bulk_, MakeValues("sparseMatrices/square", csr.values, "values-" + id, id), nullptr, 1 << 20);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  static v1::MultiplyTripleRequest Reusing(const std::string& a) {
    v1::MultiplyTripleRequest request = TripleOf("", a, "p");
    request.mutable_options()->set_reuse_plan(true);
    return request;
  }
  ProductPlans& plans() { return context().product_plans; }
  int64_t PlanBytes() { return plans().EvictableBytes(0); }
};

TEST_F(PlanReuseTest, NewValuesInTheSamePatternTakeThePlans) {
  PutValues("next", /*shared=*/true);
  PutValues("stranger", /*shared=*/false);
  const Product first = Multiply(*stub_, Reusing("square"));
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  EXPECT_FALSE(first.result->report().plan_reused() || first.result->report().intermediate().plan_reused());
  EXPECT_TRUE(first.bytes == Multiply(*stub_, TripleOf("", "square", "p")).bytes);
  const Product next = Multiply(*stub_, Reusing("next"));
  ASSERT_TRUE(next.status.ok()) << next.status.error_message();
  EXPECT_TRUE(next.result->report().plan_reused() && next.result->report().intermediate().plan_reused());
  EXPECT_EQ(next.progress.size(), 6u);
  EXPECT_EQ(next.result->report().estimate().SerializeAsString(),
            first.result->report().estimate().SerializeAsString());
  EXPECT_TRUE(next.bytes == Multiply(*stub_, TripleOf("", "next", "p")).bytes) << "the same bits without a plan";
  EXPECT_TRUE(next.bytes == Multiply(*stub_, Reusing("next")).bytes);
  // Equal places are not the same pattern.
  const Product stranger = Multiply(*stub_, Reusing("stranger"));
  EXPECT_FALSE(stranger.result->report().plan_reused() || stranger.result->report().intermediate().plan_reused());
  EXPECT_TRUE(stranger.bytes == next.bytes);
  const std::string text = Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_product_plans_total{plan=\"made\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_product_plans_total{plan=\"reused\"} 4\n"));
}

TEST_F(PlanReuseTest, KeptProductsOfOnePlanShareTheirPatternForTheNextLevel) {
  PutValues("next", /*shared=*/true);
  const auto keep = [this](const std::string& a, const std::string& id) {
    v1::MultiplyTripleRequest request = Reusing(a);
    request.mutable_keep()->set_id(id);
    EXPECT_TRUE(Multiply(*stub_, request).status.ok());
  };
  keep("square", "coarse");
  keep("next", "coarse_next");
  EXPECT_EQ((*context().matrices.Find("coarse"))->matrix.pattern(),
            (*context().matrices.Find("coarse_next"))->matrix.pattern());
  const auto square = [this](const std::string& id) {
    v1::MultiplyRequest request = ProductOf(id, id);
    request.mutable_options()->set_reuse_plan(true);
    return Multiply(*stub_, request);
  };
  ASSERT_TRUE(square("coarse").status.ok());
  const Product next = square("coarse_next");
  ASSERT_TRUE(next.status.ok()) << next.status.error_message();
  EXPECT_TRUE(next.result->report().plan_reused());
  EXPECT_TRUE(next.bytes == Multiply(*stub_, ProductOf("coarse_next", "coarse_next")).bytes);
}

TEST_F(PlanReuseTest, PlansGoWithTheirPatternsAndWhenMemoryIsWanted) {
  PutValues("next", /*shared=*/true);
  const int64_t before = test_.Info().usage().resident_bytes();
  ASSERT_TRUE(Multiply(*stub_, Reusing("square")).status.ok());
  EXPECT_EQ(plans().size(), 2);
  EXPECT_GT(PlanBytes(), 0);
  EXPECT_EQ(test_.WaitForUsage([](const v1::Usage& u) { return u.streams() == 0 && u.jobs() == 0; }).resident_bytes(),
            before + PlanBytes());
  ASSERT_TRUE(Delete("sparseMatrices/square").ok());
  EXPECT_EQ(plans().size(), 2) << "another matrix has the pattern";
  EXPECT_TRUE(Multiply(*stub_, Reusing("next")).result->report().plan_reused());
  // All memory that is free, and a byte more.
  Ledger& ledger = context().ledger;
  absl::StatusOr<Grant> others = ledger.Admit({{.resident_bytes = ledger.available(Resource::kResident) + 1}});
  ASSERT_TRUE(others.ok()) << others.status();
  EXPECT_LT(plans().size(), 2);
  *others = Grant();
  ASSERT_TRUE(Multiply(*stub_, Reusing("next")).status.ok());
  EXPECT_EQ(plans().size(), 2);
  ASSERT_TRUE(Delete("sparseMatrices/next").ok());
  EXPECT_EQ(plans().size(), 0);
}

TEST_F(PlanReuseTest, IsRefusedWithAMaskOrAnAddend) {
  v1::MultiplyTripleRequest request = Reusing("square");
  request.mutable_options()->set_mask("sparseMatrices/p");
  ExpectError(request, grpc::INVALID_ARGUMENT, "does not go with", "options.reuse_plan");
}

}  // namespace
}  // namespace intrawarp::server
