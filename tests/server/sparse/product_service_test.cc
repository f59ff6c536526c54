// SPDX-License-Identifier: Apache-2.0
// Products of sparse matrices over the wire, their options and errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>

#include "server/service/matrix_service.h"
#include "tests/server/matrix_client.h"
#include "tests/server/sparse/matrix_fixture.h"

namespace intrawarp::server {
namespace {

using ::testing::ElementsAre;

TEST_F(MatrixServiceTest, MultipliesRectanglesInChunks) {
  const HostCsr<float> a = RandomCsr<float>(2003, 501, 9, 7), b = RandomCsr<float>(501, 1777, 60, 8);
  Put("a", a);
  Put("b", b);
  const Product product = Multiply(*stub_, ProductOf("a", "b"));
  ASSERT_TRUE(product.status.ok()) << product.status.error_message();
  ASSERT_TRUE(product.header && product.result);
  EXPECT_EQ(product.header->total_bytes(), static_cast<int64_t>(product.bytes.size()));
  EXPECT_GT(product.chunks, 1);
  const HostCsr<float> c = CsrFromBytes<float>(product.header->shape(), product.bytes);
  EXPECT_EQ(c.rows, 2003);
  EXPECT_EQ(c.columns, 1777);
  EXPECT_TRUE(EntriesOf(c) == Reference(a, b));  // whole numbers: exact

  int64_t products = 0;
  for (int32_t k : a.column_indices) products += b.row_offsets[k + 1] - b.row_offsets[k];
  const v1::MultiplyReport& report = product.result->report();
  EXPECT_EQ(report.device(), context().device.name());
  EXPECT_EQ(report.options().precision(), v1::PRECISION_FP32);
  EXPECT_EQ(report.options().semiring(), v1::SEMIRING_PLUS_TIMES);
  EXPECT_EQ(report.shape().SerializeAsString(), product.header->shape().SerializeAsString());
  EXPECT_EQ(report.estimate().multiplications(), products);
  EXPECT_GE(report.estimate().max_entries(), c.entries());
  EXPECT_GE(report.estimate().result_bytes(), static_cast<int64_t>(product.bytes.size()));
  const v1::LatencyBreakdown& ms = report.latency();
  EXPECT_GT(ms.prepare_ms(), 0);
  EXPECT_GT(ms.optimise_ms(), 0);
  EXPECT_GT(ms.download_ms(), 0);
  EXPECT_GE(ms.total_ms(), ms.admit_ms() + ms.queue_ms() + ms.prepare_ms() + ms.optimise_ms());
  ASSERT_EQ(product.progress.size(), 3u);
  EXPECT_EQ(product.progress[0].step(), v1::MultiplyProgress::STEP_ESTIMATED);
  EXPECT_EQ(product.progress[0].estimate().multiplications(), products);
  EXPECT_EQ(product.progress[0].entries(), 0);
  EXPECT_EQ(product.progress[1].step(), v1::MultiplyProgress::STEP_PLANNED);
  EXPECT_EQ(product.progress[1].entries(), c.entries());
  EXPECT_EQ(product.progress[2].step(), v1::MultiplyProgress::STEP_MULTIPLIED);
  EXPECT_THAT(Names(), ElementsAre("sparseMatrices/a", "sparseMatrices/b"));
}

TEST_F(MatrixServiceTest, MultipliesInDoubleAndEmptyMatrices) {
  const HostCsr<double> a = RandomCsr<double>(40, 30, 5, 9);
  Put("a", a);
  Put("b", RandomCsr<double>(30, 20, 5, 10));
  Put("empty", RandomCsr<double>(30, 0, 5, 10));
  v1::MultiplyRequest request = ProductOf("a", "b");
  request.mutable_options()->set_precision(v1::PRECISION_FP64);
  const Product product = Multiply(*stub_, request);
  ASSERT_TRUE(product.status.ok()) << product.status.error_message();
  EXPECT_TRUE(EntriesOf(CsrFromBytes<double>(product.header->shape(), product.bytes)) ==
              Reference(a, RandomCsr<double>(30, 20, 5, 10)));
  request.set_b("sparseMatrices/empty");
  const Product none = Multiply(*stub_, request);
  ASSERT_TRUE(none.status.ok()) << none.status.error_message();
  const HostCsr<double> c = CsrFromBytes<double>(none.header->shape(), none.bytes);
  EXPECT_EQ(c.rows, 40);
  EXPECT_EQ(c.columns, 0);
  EXPECT_EQ(c.entries(), 0);
}

TEST_F(MatrixServiceTest, AKeptProductIsAMatrixLikeOthers) {
  const HostCsr<float> a = RandomCsr<float>(50, 50, 4, 11);
  Put("a", a);
  v1::MultiplyRequest request = ProductOf("a", "a");
  request.mutable_keep()->set_id("square");
  const Product kept = Multiply(*stub_, request);
  ASSERT_TRUE(kept.status.ok()) << kept.status.error_message();
  EXPECT_FALSE(kept.header.has_value());
  EXPECT_EQ(kept.chunks, 0);
  const v1::SparseMatrix& matrix = kept.result->sparse_matrix();
  EXPECT_EQ(matrix.name(), "sparseMatrices/square");
  EXPECT_EQ(matrix.digest(), "");
  v1::SparseMatrix got;
  ASSERT_TRUE(Get("sparseMatrices/square", &got).ok());
  EXPECT_EQ(got.SerializeAsString(), matrix.SerializeAsString());
  EXPECT_THAT(Names(), ElementsAre("sparseMatrices/a", "sparseMatrices/square"));
  v1::SparseMatrix of_a;
  ASSERT_TRUE(Get("sparseMatrices/a", &of_a).ok());
  EXPECT_EQ(test_.Info().usage().resident_bytes(), of_a.resident_bytes() + matrix.resident_bytes());

  const Product sent = Multiply(*stub_, ProductOf("a", "a"));
  EXPECT_TRUE(DownloadMatrix(*bulk_, "sparseMatrices/square").bytes == sent.bytes);
  // A factor of the next product.
  const Product cube = Multiply(*stub_, ProductOf("square", "a"));
  ASSERT_TRUE(cube.status.ok());
  EXPECT_TRUE(EntriesOf(CsrFromBytes<float>(cube.header->shape(), cube.bytes)) ==
              Reference(CsrFromBytes<float>(sent.header->shape(), sent.bytes), a));
  ExpectError(request, grpc::ALREADY_EXISTS, "sparseMatrices/square", "");
  request.mutable_keep()->clear_id();
  const Product named = Multiply(*stub_, request);
  ASSERT_TRUE(named.status.ok());
  EXPECT_THAT(named.result->sparse_matrix().name(), testing::MatchesRegex("sparseMatrices/[0-9a-f]+"));
}

TEST_F(MatrixServiceTest, ResultsAreTheSameBitsEveryTime) {
  HostCsr<float> a = RandomCsr<float>(400, 400, 30, 12);
  for (size_t i = 0; i < a.values.size(); ++i) a.values[i] *= 1.0f / static_cast<float>(i % 97 + 3);
  Put("a", a);
  const Product first = Multiply(*stub_, ProductOf("a", "a"));
  ASSERT_TRUE(first.status.ok());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Multiply(*stub_, ProductOf("a", "a")).bytes == first.bytes);
}

TEST_F(MatrixServiceTest, EachWrongProductNamesItsField) {
  Put("a", RandomCsr<float>(6, 5, 3, 1));
  Put("b", RandomCsr<float>(5, 4, 3, 2));
  Put("d", RandomCsr<double>(5, 4, 3, 2));
  const auto with = [](const std::function<void(v1::MultiplyRequest&)>& spoil) {
    v1::MultiplyRequest request = ProductOf("a", "b");
    spoil(request);
    return request;
  };
  using R = v1::MultiplyRequest;
  ExpectError(with([](R& r) { r.set_a("a"); }), grpc::INVALID_ARGUMENT, "sparseMatrices/{id}", "a");
  ExpectError(with([](R& r) { r.set_b("volumes/b"); }), grpc::INVALID_ARGUMENT, "sparseMatrices/{id}", "b");
  ExpectError(with([](R& r) { r.set_b("sparseMatrices/none"); }), grpc::NOT_FOUND, "sparseMatrices/none", "");
  ExpectError(ProductOf("b", "a"), grpc::INVALID_ARGUMENT, "6 rows", "b");
  ExpectError(ProductOf("a", "d"), grpc::INVALID_ARGUMENT, "float64", "b");
  ExpectError(with([](R& r) { r.mutable_options()->set_precision(v1::PRECISION_FP64); }), grpc::INVALID_ARGUMENT,
              "float32", "a");
  ExpectError(with([](R& r) { r.mutable_options()->set_precision(v1::Precision(99)); }), grpc::UNIMPLEMENTED,
              "precision", "options.precision");
  ExpectError(with([](R& r) { r.mutable_options()->set_semiring(v1::Semiring(99)); }), grpc::UNIMPLEMENTED, "semiring",
              "options.semiring");
  ExpectError(with([](R& r) { r.mutable_options()->set_alpha(std::numeric_limits<double>::infinity()); }),
              grpc::INVALID_ARGUMENT, "finite", "options.alpha");
  ExpectError(with([](R& r) { r.mutable_options()->set_beta(2); }), grpc::INVALID_ARGUMENT, "addend", "options.beta");
  ExpectError(with([](R& r) { r.mutable_options()->set_complement_mask(true); }), grpc::INVALID_ARGUMENT,
              "complement_mask needs one", "options.mask");
  ExpectError(with([](R& r) { r.mutable_options()->set_mask("sparseMatrices/b"); }), grpc::INVALID_ARGUMENT, "5x4",
              "options.mask");
  ExpectError(with([](R& r) { r.mutable_options()->set_addend("sparseMatrices/b"); }), grpc::INVALID_ARGUMENT, "5x4",
              "options.addend");
  ExpectError(with([](R& r) {
                r.mutable_options()->set_semiring(v1::SEMIRING_MIN_PLUS);
                r.mutable_options()->set_alpha(2);
              }),
              grpc::INVALID_ARGUMENT, "plus-times", "options.alpha");
  ExpectError(with([](R& r) { r.mutable_keep()->set_id("no/id"); }), grpc::INVALID_ARGUMENT, "must match", "keep.id");
}

TEST_F(MatrixServiceTest, OptionsReachTheProduct) {
  const HostCsr<float> a = RandomCsr<float>(20, 30, 4, 13), b = RandomCsr<float>(20, 25, 5, 14);
  const HostCsr<float> mask = RandomCsr<float>(30, 25, 6, 15), d = RandomCsr<float>(30, 25, 3, 16);
  Put("a", a);
  Put("b", b);
  Put("mask", mask);
  Put("d", d);
  v1::MultiplyRequest request = ProductOf("a", "b");
  request.mutable_options()->set_transpose_a(true);
  const auto run = [&] {
    const Product product = Multiply(*stub_, request);
    EXPECT_TRUE(product.status.ok()) << product.status.error_message();
    if (!product.status.ok()) return Entries<double>();
    return EntriesOf(CsrFromBytes<float>(product.header->shape(), product.bytes));
  };
  const Entries<double> plain = Reference(Transposed(a), b);
  EXPECT_TRUE(run() == plain);

  const Entries<double> allowed = EntriesOf(mask), added = EntriesOf(d);
  for (bool complement : {false, true}) {
    request.mutable_options()->set_mask("sparseMatrices/mask");
    request.mutable_options()->set_complement_mask(complement);
    request.mutable_options()->set_alpha(3);
    request.mutable_options()->set_addend("sparseMatrices/d");
    request.mutable_options()->set_beta(-2);
    Entries<double> expected;
    for (const auto& [place, value] : plain) {
      if ((allowed.count(place) > 0) != complement) expected[place] = 3 * value;
    }
    for (const auto& [place, value] : added) expected[place] += -2 * value;
    EXPECT_TRUE(run() == expected) << complement;
  }

  request = ProductOf("a", "b");
  request.mutable_options()->set_transpose_a(true);
  request.mutable_options()->set_semiring(v1::SEMIRING_OR_AND);
  Entries<double> ones;
  for (const auto& [place, value] : plain) ones[place] = 1;
  EXPECT_TRUE(run() == ones);

  // 1 + 2^-12 has more bits than the reduced precisions keep.
  HostCsr<float> fine = Full(1, 1, 1 + std::ldexp(1.0f, -12));
  Put("fine", fine);
  for (const auto& [precision, value] :
       std::map<v1::Precision, float>{{v1::PRECISION_FP16, 1.0f},
                                      {v1::PRECISION_BF16, 1.0f},
                                      {v1::PRECISION_TF32, 1.0f},
                                      {v1::PRECISION_FP32, fine.values[0] * fine.values[0]}}) {
    request = ProductOf("fine", "fine");
    request.mutable_options()->set_precision(precision);
    EXPECT_EQ((run()[{0, 0}]), value) << v1::Precision_Name(precision);
  }
}

TEST_F(MatrixServiceTest, ShortestPathsAndProductsOfThree) {
  const HostCsr<float> a = RandomCsr<float>(40, 40, 4, 20), p = RandomCsr<float>(40, 12, 2, 21);
  Put("a", a);
  Put("p", p);
  v1::MultiplyRequest request = ProductOf("a", "a");
  request.mutable_options()->set_semiring(v1::SEMIRING_MIN_PLUS);
  const Product paths = Multiply(*stub_, request);
  ASSERT_TRUE(paths.status.ok()) << paths.status.error_message();
  EXPECT_EQ(paths.result->report().options().semiring(), v1::SEMIRING_MIN_PLUS);
  Entries<double> shortest;
  for (const auto& [place, value] : EntriesOf(a)) {
    for (int64_t i = a.row_offsets[place.second]; i < a.row_offsets[place.second + 1]; ++i) {
      const double sum = value + a.values[i];
      const auto [at, is_new] = shortest.try_emplace({place.first, a.column_indices[i]}, sum);
      if (!is_new) at->second = std::min(at->second, sum);
    }
  }
  EXPECT_TRUE(EntriesOf(CsrFromBytes<float>(paths.header->shape(), paths.bytes)) == shortest);

  // P^T A P: what is in the middle stays on the device.
  request = ProductOf("a", "p");
  request.mutable_keep()->set_id("ap");
  ASSERT_TRUE(Multiply(*stub_, request).status.ok());
  request = ProductOf("p", "ap");
  request.mutable_options()->set_transpose_a(true);
  const Product coarse = Multiply(*stub_, request);
  ASSERT_TRUE(coarse.status.ok()) << coarse.status.error_message();
  const HostCsr<float> ap = CsrFromBytes<float>(Multiply(*stub_, ProductOf("a", "p")).header->shape(),
                                                Multiply(*stub_, ProductOf("a", "p")).bytes);
  EXPECT_TRUE(EntriesOf(CsrFromBytes<float>(coarse.header->shape(), coarse.bytes)) == Reference(Transposed(p), ap));

  // A^T A of a rectangle.
  request = ProductOf("p", "p");
  request.mutable_options()->set_transpose_a(true);
  const Product gram = Multiply(*stub_, request);
  ASSERT_TRUE(gram.status.ok()) << gram.status.error_message();
  EXPECT_TRUE(EntriesOf(CsrFromBytes<float>(gram.header->shape(), gram.bytes)) == Reference(Transposed(p), p));
}

}  // namespace
}  // namespace intrawarp::server
