// SPDX-License-Identifier: Apache-2.0
// New values for the pattern of a resident matrix, over the wire.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/server/matrix_client.h"
#include "tests/server/sparse/matrix_fixture.h"

namespace intrawarp::server {
namespace {

using ::testing::ElementsAre;

// One value an entry, none of them whole.
template <typename T>
std::vector<T> Values(int64_t entries, int seed) {
  std::vector<T> values;
  for (int64_t i = 0; i < entries; ++i) values.push_back(static_cast<T>(seed + 1) / static_cast<T>(i % 101 + 3));
  return values;
}

template <typename To, typename From>
HostCsr<To> With(const HostCsr<From>& pattern, std::vector<To> values) {
  return {pattern.rows, pattern.columns, pattern.row_offsets, pattern.column_indices, std::move(values)};
}

class MatrixValuesTest : public MatrixServiceTest {
 protected:
  MatrixValuesTest() { Put("first", csr_); }
  UploadData Data(int seed, const std::string& id) {
    return MakeValues("sparseMatrices/first", Values<float>(csr_.entries(), seed), "values-" + id, id);
  }
  const CsrMatrix& Resident(const std::string& id) { return (*context().matrices.Find(id))->matrix; }

  const HostCsr<float> csr_ = RandomCsr<float>(300, 200, 9, 31);
};

TEST_F(MatrixValuesTest, HasTheBitsOfAWholeUploadAndSharesThePattern) {
  v1::UploadResponse response;
  ASSERT_TRUE(Upload(*bulk_, Data(1, "second"), &response).ok());
  EXPECT_FALSE(response.already_resident());
  const HostCsr<float> expected = With(csr_, Values<float>(csr_.entries(), 1));
  EXPECT_TRUE(DownloadMatrix(*bulk_, "sparseMatrices/second").bytes == CsrBytes(expected));
  Put("whole", expected);
  v1::SparseMatrix second, whole;
  ASSERT_TRUE(Get("sparseMatrices/second", &second).ok());
  ASSERT_TRUE(Get("sparseMatrices/whole", &whole).ok());
  EXPECT_EQ(second.SerializeAsString(), response.sparse_matrix().SerializeAsString());
  EXPECT_EQ(second.shape().SerializeAsString(), whole.shape().SerializeAsString());
  EXPECT_EQ(second.resident_bytes(), whole.resident_bytes());
  EXPECT_EQ(second.digest(), Data(1, "second").header.sha256());
  EXPECT_EQ(Resident("second").pattern(), Resident("first").pattern());
  EXPECT_NE(Resident("whole").pattern(), Resident("first").pattern());
  const Product by_values = Multiply(*stub_, ProductOf("second", "second"));
  EXPECT_EQ(DetailsOf(by_values.status).field, "b") << "200 columns and 300 rows";
  v1::MultiplyRequest gram = ProductOf("second", "second"), gram_of_whole = ProductOf("whole", "whole");
  gram.mutable_options()->set_transpose_a(true);
  gram_of_whole.mutable_options()->set_transpose_a(true);
  const Product product = Multiply(*stub_, gram);
  ASSERT_TRUE(product.status.ok()) << product.status.error_message();
  EXPECT_TRUE(product.bytes == Multiply(*stub_, gram_of_whole).bytes);
}

TEST_F(MatrixValuesTest, EachMatrixOutlivesTheOther) {
  ASSERT_TRUE(Upload(*bulk_, Data(1, "second")).ok());
  ASSERT_TRUE(Delete("sparseMatrices/first").ok());
  const HostCsr<float> expected = With(csr_, Values<float>(csr_.entries(), 1));
  EXPECT_TRUE(DownloadMatrix(*bulk_, "sparseMatrices/second").bytes == CsrBytes(expected));
  // The pattern goes on from one to the next.
  ASSERT_TRUE(
      Upload(*bulk_, MakeValues("sparseMatrices/second", Values<float>(csr_.entries(), 2), "u3", "third")).ok());
  ASSERT_TRUE(Delete("sparseMatrices/second").ok());
  EXPECT_TRUE(DownloadMatrix(*bulk_, "sparseMatrices/third").bytes ==
              CsrBytes(With(csr_, Values<float>(csr_.entries(), 2))));
}

TEST_F(MatrixValuesTest, TheTypeMayBeAnotherAndAMatrixMayBeEmpty) {
  const std::vector<double> values = Values<double>(csr_.entries(), 5);
  ASSERT_TRUE(Upload(*bulk_, MakeValues("sparseMatrices/first", values, "u", "double")).ok());
  EXPECT_TRUE(DownloadMatrix(*bulk_, "sparseMatrices/double").bytes == CsrBytes(With(csr_, values)));
  const HostCsr<float> empty = {4, 3, {0, 0, 0, 0, 0}, {}, {}};
  Put("empty", empty);
  ASSERT_TRUE(Upload(*bulk_, MakeValues("sparseMatrices/empty", std::vector<float>(), "v", "none")).ok());
  EXPECT_TRUE(DownloadMatrix(*bulk_, "sparseMatrices/none").bytes == CsrBytes(empty));
}

TEST_F(MatrixValuesTest, EachWrongHeaderNamesItsField) {
  using H = v1::UploadHeader;
  const auto error = [this](const std::function<void(H&)>& spoil) {
    UploadData data = Data(1, "second");
    spoil(data.header);
    return Upload(*bulk_, data);
  };
  const auto field = [&](const std::function<void(H&)>& spoil) { return DetailsOf(error(spoil)).field; };
  EXPECT_EQ(field([](H& h) { h.mutable_sparse_matrix_values()->set_pattern("first"); }),
            "header.sparse_matrix_values.pattern");
  EXPECT_EQ(field([](H& h) { h.mutable_sparse_matrix_values()->clear_pattern(); }),
            "header.sparse_matrix_values.pattern");
  EXPECT_EQ(field([](H& h) { h.mutable_sparse_matrix_values()->clear_value_type(); }),
            "header.sparse_matrix_values.value_type");
  EXPECT_EQ(field([](H& h) { h.mutable_sparse_matrix_values()->set_value_type(v1::VALUE_TYPE_FLOAT64); }),
            "header.total_bytes");
  EXPECT_EQ(field([](H& h) { h.set_total_bytes(h.total_bytes() - 4); }), "header.total_bytes");
  EXPECT_EQ(field([](H& h) { h.clear_upload_id(); }), "header.upload_id");
  const grpc::Status missing =
      error([](H& h) { h.mutable_sparse_matrix_values()->set_pattern("sparseMatrices/none"); });
  EXPECT_EQ(missing.error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(DetailsOf(missing).resource, "sparseMatrices/none");
  EXPECT_EQ(error([](H& h) { h.set_id("first"); }).error_code(), grpc::ALREADY_EXISTS);
  EXPECT_THAT(Names(), ElementsAre("sparseMatrices/first"));
}

TEST_F(MatrixValuesTest, IsIdempotentAndResumes) {
  v1::UploadResponse chosen, again, other;
  ASSERT_TRUE(Upload(*bulk_, Data(1, ""), &chosen).ok());
  UploadData repeated = Data(1, "");
  repeated.header.set_upload_id("another");
  ASSERT_TRUE(Upload(*bulk_, repeated, &again).ok());
  EXPECT_TRUE(again.already_resident());
  EXPECT_EQ(again.sparse_matrix().name(), chosen.sparse_matrix().name());
  // The same values in another pattern are another matrix.
  HostCsr<float> wider = csr_;
  ++wider.columns;
  Put("wider", wider);
  ASSERT_TRUE(Upload(*bulk_, MakeValues("sparseMatrices/wider", Values<float>(csr_.entries(), 1), "w"), &other).ok());
  EXPECT_FALSE(other.already_resident());

  const UploadData broken = Data(2, "second");
  EXPECT_EQ(DetailsOf(Upload(*bulk_, broken, nullptr, 1000, 0, 3000)).reason, "UPLOAD_INCOMPLETE");
  ASSERT_TRUE(Upload(*bulk_, broken, nullptr, 1000, 3000).ok());
  EXPECT_TRUE(DownloadMatrix(*bulk_, "sparseMatrices/second").bytes ==
              CsrBytes(With(csr_, Values<float>(csr_.entries(), 2))));
  UploadData damaged = Data(3, "third");
  damaged.bytes[100] ^= 1;
  EXPECT_EQ(DetailsOf(Upload(*bulk_, damaged)).reason, "DIGEST_MISMATCH");
}

// While an upload waits for its client the name of its pattern may come to mean another matrix.
TEST_F(MatrixValuesTest, AnotherPatternUnderTheSameNameDropsTheUpload) {
  const UploadData data = Data(2, "second");
  EXPECT_EQ(DetailsOf(Upload(*bulk_, data, nullptr, 1000, 0, 3000)).reason, "UPLOAD_INCOMPLETE");
  ASSERT_TRUE(Delete("sparseMatrices/first").ok());
  EXPECT_EQ(Upload(*bulk_, data, nullptr, 1000, 3000).error_code(), grpc::NOT_FOUND);
  HostCsr<float> other = csr_;
  ++other.columns;
  Put("first", other);
  EXPECT_EQ(DetailsOf(Upload(*bulk_, data, nullptr, 1000, 3000)).reason, "INVALID_FIELD");
  EXPECT_THAT(Names(), ElementsAre("sparseMatrices/first"));
}

}  // namespace
}  // namespace intrawarp::server
