// SPDX-License-Identifier: Apache-2.0
// Sparse matrices over the wire: uploads, downloads, lists, what is refused.
#include "server/service/matrix_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "server/monitor/registry.h"
#include "tests/server/matrix_client.h"
#include "tests/server/sparse/matrix_fixture.h"
#include "tests/server/volume_client.h"

namespace intrawarp::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(MatrixServiceTest, ComesBackAsItWas) {
  const HostCsr<float> csr = RandomCsr<float>(61, 43, 5, 1);
  const UploadData data = MakeMatrix(csr, "u", "stiffness");
  v1::UploadResponse response;
  const grpc::Status status = Upload(*bulk_, data, &response, /*chunk=*/37);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_FALSE(response.already_resident());
  const v1::SparseMatrix& matrix = response.sparse_matrix();
  EXPECT_EQ(matrix.name(), "sparseMatrices/stiffness");
  EXPECT_EQ(matrix.shape().SerializeAsString(), data.header.sparse_matrix().shape().SerializeAsString());
  EXPECT_EQ(matrix.digest(), data.header.sha256());
  EXPECT_GE(matrix.resident_bytes(), static_cast<int64_t>(data.bytes.size()));
  EXPECT_GT(matrix.create_time().seconds(), 0);
  v1::SparseMatrix got;
  ASSERT_TRUE(Get("sparseMatrices/stiffness", &got).ok());
  EXPECT_EQ(got.SerializeAsString(), matrix.SerializeAsString());

  const DownloadedBytes back = DownloadMatrix(*bulk_, "sparseMatrices/stiffness");
  ASSERT_TRUE(back.status.ok()) << back.status.error_message();
  EXPECT_EQ(back.header.sparse_matrix().SerializeAsString(), matrix.SerializeAsString());
  EXPECT_EQ(back.header.total_bytes(), static_cast<int64_t>(data.bytes.size()));
  EXPECT_TRUE(back.bytes == data.bytes);

  const v1::Usage usage = test_.Info().usage();
  EXPECT_EQ(usage.sparse_matrices(), 1);
  EXPECT_EQ(usage.uploads(), 0);
  EXPECT_EQ(usage.resident_bytes(), matrix.resident_bytes());
}

TEST_F(MatrixServiceTest, EmptyOnesAndOnesOfManySlabs) {
  // No rows, no columns, no entries; float64; more than two slabs of a download, no multiple of a chunk.
  const HostCsr<double> large = RandomCsr<double>(70001, 5000, 30, 2);
  ASSERT_GT(CsrBytes(large).size(), size_t{17} << 20);
  const UploadData datas[] = {
      MakeMatrix(HostCsr<float>(), "0", "none"), MakeMatrix(RandomCsr<float>(0, 7, 3, 1), "1", "norows"),
      MakeMatrix(RandomCsr<double>(7, 0, 3, 1), "2", "nocolumns"),
      MakeMatrix(RandomCsr<float>(300, 1, 0, 1), "3", "noentries"), MakeMatrix(large, "4", "large")};
  for (const UploadData& data : datas) {
    SCOPED_TRACE(data.header.id());
    const grpc::Status status = Upload(*bulk_, data, nullptr, 1 << 20);
    ASSERT_TRUE(status.ok()) << status.error_message();
    const DownloadedBytes back = DownloadMatrix(*bulk_, "sparseMatrices/" + data.header.id());
    ASSERT_TRUE(back.status.ok()) << back.status.error_message();
    EXPECT_TRUE(back.bytes == data.bytes);
  }
}

TEST_F(MatrixServiceTest, EachWrongHeaderNamesItsField) {
  using Header = v1::UploadHeader;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const struct {
    const char* field;
    std::function<void(Header&)> spoil;
  } cases[] = {
      {"header.id", [](Header& h) { h.set_id("../x"); }},
      {"header.upload_id", [](Header& h) { h.set_upload_id(""); }},
      {"header.sparse_matrix.shape.rows", [](Header& h) { h.mutable_sparse_matrix()->mutable_shape()->set_rows(-1); }},
      {"header.sparse_matrix.shape.rows",
       [](Header& h) { h.mutable_sparse_matrix()->mutable_shape()->set_rows(int64_t{1} << 31); }},
      {"header.sparse_matrix.shape.columns",
       [](Header& h) { h.mutable_sparse_matrix()->mutable_shape()->set_columns(-1); }},
      {"header.sparse_matrix.shape.columns",
       [](Header& h) { h.mutable_sparse_matrix()->mutable_shape()->set_columns(kMost); }},
      {"header.sparse_matrix.shape.entries",
       [](Header& h) { h.mutable_sparse_matrix()->mutable_shape()->set_entries(-1); }},
      {"header.sparse_matrix.shape.entries",
       [](Header& h) { h.mutable_sparse_matrix()->mutable_shape()->set_entries(kMost); }},
      // One more than there are places.
      {"header.sparse_matrix.shape.entries",
       [](Header& h) { h.mutable_sparse_matrix()->mutable_shape()->set_entries(9 * 8 + 1); }},
      // Places enough, but bytes that overflow.
      {"header.sparse_matrix.shape.entries",
       [](Header& h) {
         h.mutable_sparse_matrix()->mutable_shape()->set_rows((int64_t{1} << 31) - 1);
         h.mutable_sparse_matrix()->mutable_shape()->set_columns((int64_t{1} << 31) - 1);
         h.mutable_sparse_matrix()->mutable_shape()->set_entries(int64_t{1} << 61);
       }},
      {"header.sparse_matrix.shape.value_type",
       [](Header& h) { h.mutable_sparse_matrix()->mutable_shape()->clear_value_type(); }},
      {"header.sparse_matrix.shape.value_type",
       [](Header& h) { h.mutable_sparse_matrix()->mutable_shape()->set_value_type(v1::ValueType(9)); }},
      {"header.total_bytes", [](Header& h) { h.set_total_bytes(h.total_bytes() - 1); }},
      {"header.total_bytes", [](Header& h) { h.set_total_bytes(-1); }},
      {"header.total_bytes",
       [](Header& h) { h.mutable_sparse_matrix()->mutable_shape()->set_value_type(v1::VALUE_TYPE_FLOAT64); }},
      {"header.sha256", [](Header& h) { h.mutable_sha256()->pop_back(); }},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.field);
    UploadData data = MakeMatrix(RandomCsr<float>(9, 8, 3, 1), "u");
    c.spoil(data.header);
    const grpc::Status status = Upload(*bulk_, data);
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT) << status.error_message();
    EXPECT_EQ(DetailsOf(status).field, c.field) << status.error_message();
    EXPECT_TRUE(Nothing(test_.WaitForUsage(Nothing)));
  }
}

TEST_F(MatrixServiceTest, EachBrokenCsrNamesItsArrayAndIsDropped) {
  const auto change = [](auto member, size_t at, int64_t value) {
    return [=](HostCsr<float>& m) {
      auto& array = m.*member;
      array[at] = static_cast<typename std::decay_t<decltype(array)>::value_type>(value);
    };
  };
  constexpr auto kOffsets = &HostCsr<float>::row_offsets;
  constexpr auto kColumns = &HostCsr<float>::column_indices;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const struct {
    const char* field;
    std::function<void(HostCsr<float>&)> spoil;
  } cases[] = {
      {"row_offsets", change(kOffsets, 0, 1)},
      {"row_offsets", change(kOffsets, 1, 3)},
      {"row_offsets", change(kOffsets, 1, -1)},
      {"row_offsets", change(kOffsets, 1, kMost)},
      {"row_offsets", change(kOffsets, 3, 4)},
      {"row_offsets", change(kOffsets, 3, 6)},
      {"column_indices", change(kColumns, 0, -1)},
      {"column_indices", change(kColumns, 4, 4)},
      {"column_indices", change(kColumns, 1, 0)},
      {"column_indices", change(kColumns, 0, 3)},
      {"column_indices", change(kColumns, 4, std::numeric_limits<int32_t>::max())},
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    SCOPED_TRACE(i);
    HostCsr<float> csr;  // 0 2 | - | 0 1 3
    csr.rows = 3;
    csr.columns = 4;
    csr.row_offsets = {0, 2, 2, 5};
    csr.column_indices = {0, 2, 0, 1, 3};
    csr.values = {1, 2, 3, 4, 5};
    ASSERT_TRUE(ValidateCsr(csr).ok());
    cases[i].spoil(csr);
    const grpc::Status status = Upload(*bulk_, MakeMatrix(csr, "u"));
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT) << status.error_message();
    EXPECT_EQ(DetailsOf(status).field, cases[i].field) << status.error_message();
    EXPECT_TRUE(Nothing(test_.WaitForUsage(Nothing)));
  }
}

TEST_F(MatrixServiceTest, BrokenUploadsResumeAndWrongDigestsDrop) {
  UploadData data = MakeMatrix(RandomCsr<float>(200, 100, 7, 4), "u", "m");
  grpc::Status status = Upload(*bulk_, data, nullptr, 500, 0, 1500);
  EXPECT_EQ(DetailsOf(status).reason, "UPLOAD_INCOMPLETE");
  // The upload is free to be resumed when its stream is gone.
  test_.WaitForUsage([](const v1::Usage& u) { return u.streams() == 0; });
  v1::GetUploadStatusRequest request;
  request.set_upload_id("u");
  v1::GetUploadStatusResponse progress;
  {
    grpc::ClientContext call;
    ASSERT_TRUE(bulk_->GetUploadStatus(&call, request, &progress).ok());
  }
  EXPECT_EQ(progress.committed_bytes(), 1500);
  EXPECT_EQ(progress.total_bytes(), static_cast<int64_t>(data.bytes.size()));
  // An upload of a volume is another one, and does not touch this one before it is dropped for its header.
  status = Upload(*bulk_, data, nullptr, 500, 1500);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(DownloadMatrix(*bulk_, "sparseMatrices/m").bytes == data.bytes);
  {
    grpc::ClientContext call;
    EXPECT_EQ(bulk_->GetUploadStatus(&call, request, &progress).error_code(), grpc::NOT_FOUND);
  }
  UploadData wrong = MakeMatrix(RandomCsr<float>(20, 10, 3, 5), "w", "w");
  wrong.bytes.back() = static_cast<char>(wrong.bytes.back() ^ 1);
  status = Upload(*bulk_, wrong);
  EXPECT_EQ(status.error_code(), grpc::DATA_LOSS);
  EXPECT_EQ(DetailsOf(status).reason, "DIGEST_MISMATCH");
  EXPECT_EQ(test_.WaitForUsage([](const v1::Usage& u) { return u.uploads() == 0; }).uploads(), 0);
  EXPECT_THAT(Names(), ElementsAre("sparseMatrices/m"));
}

TEST_F(MatrixServiceTest, AnUploadIdOfAVolumeIsNotOneOfAMatrix) {
  const Geometry grid = BoxGeometry(4, 4, 4);
  UploadCall unfinished(*bulk_);
  unfinished.SendHeader(MakeVolume(grid, RandomVoxels<float>(grid, 1), "u").header);
  EXPECT_EQ(test_.WaitForUsage([](const v1::Usage& u) { return u.uploads() == 1; }).uploads(), 1);
  const UploadData data = MakeMatrix(RandomCsr<float>(9, 8, 3, 1), "u");
  EXPECT_EQ(DetailsOf(Upload(*bulk_, data)).reason, "INVALID_FIELD");
  EXPECT_EQ(DetailsOf(unfinished.Await()).reason, "UPLOAD_TAKEN_OVER");
  EXPECT_EQ(test_.WaitForUsage([](const v1::Usage& u) { return u.uploads() == 0; }).uploads(), 0);
}

TEST_F(MatrixServiceTest, UploadIsIdempotentAndIdsAreTakenOnce) {
  const HostCsr<float> csr = RandomCsr<float>(30, 20, 4, 6);
  v1::UploadResponse first, second;
  ASSERT_TRUE(Upload(*bulk_, MakeMatrix(csr, "1"), &first).ok());
  ASSERT_TRUE(Upload(*bulk_, MakeMatrix(csr, "2"), &second).ok());
  EXPECT_FALSE(first.already_resident());
  EXPECT_TRUE(second.already_resident());
  EXPECT_EQ(first.sparse_matrix().name(), second.sparse_matrix().name());
  // The same bytes in another shape are another matrix.
  HostCsr<float> wider = csr;
  wider.columns += 1;
  ASSERT_TRUE(Upload(*bulk_, MakeMatrix(wider, "3"), &second).ok());
  EXPECT_FALSE(second.already_resident());
  ASSERT_TRUE(Upload(*bulk_, MakeMatrix(csr, "4", "mine"), &second).ok());
  EXPECT_FALSE(second.already_resident());
  const grpc::Status taken = Upload(*bulk_, MakeMatrix(wider, "5", "mine"));
  EXPECT_EQ(taken.error_code(), grpc::ALREADY_EXISTS);
  EXPECT_EQ(DetailsOf(taken).resource, "sparseMatrices/mine");
  EXPECT_EQ(Names().size(), 3u);
}

TEST_F(MatrixServiceTest, ListsInPagesAndKnowsNoOthers) {
  for (const char* id : {"b", "d", "a", "c", "e"}) Put(id, RandomCsr<float>(4, 4, 2, id[0]));
  std::vector<std::string> names;
  v1::ListSparseMatricesRequest request;
  request.set_page_size(2);
  int pages = 0;
  do {
    grpc::ClientContext call;
    v1::ListSparseMatricesResponse response;
    ASSERT_TRUE(stub_->ListSparseMatrices(&call, request, &response).ok());
    for (const auto& matrix : response.sparse_matrices()) names.push_back(matrix.name());
    request.set_page_token(response.next_page_token());
    ++pages;
  } while (!request.page_token().empty());
  EXPECT_EQ(pages, 3);
  EXPECT_THAT(names, ElementsAre("sparseMatrices/a", "sparseMatrices/b", "sparseMatrices/c", "sparseMatrices/d",
                                 "sparseMatrices/e"));
  v1::SparseMatrix matrix;
  EXPECT_EQ(DetailsOf(Get("sparseMatrices/none", &matrix)).resource, "sparseMatrices/none");
  EXPECT_EQ(DetailsOf(Get("volumes/a", &matrix)).field, "name");
  EXPECT_EQ(Delete("sparseMatrices/none").error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(DownloadMatrix(*bulk_, "sparseMatrices/none").status.error_code(), grpc::NOT_FOUND);
}

TEST_F(MatrixServiceTest, MetricsKnowOfMatricesAndProducts) {
  const HostCsr<float> a = RandomCsr<float>(30, 30, 3, 19);
  Put("a", a);
  Put("b", RandomCsr<float>(29, 30, 3, 19));
  ASSERT_TRUE(Multiply(*stub_, ProductOf("a", "a")).status.ok());
  EXPECT_FALSE(Multiply(*stub_, ProductOf("a", "b")).status.ok());
  int64_t products = 0;
  for (int32_t k : a.column_indices) products += a.row_offsets[k + 1] - a.row_offsets[k];
  test_.WaitForUsage([](const v1::Usage& u) { return u.streams() == 0 && u.jobs() == 0; });
  const std::string text = context().metrics.registry.Scrape();
  EXPECT_THAT(text, HasSubstr("intrawarp_resident_objects{kind=\"sparse_matrix\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_products_total{outcome=\"ok\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_products_total{outcome=\"failed\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_product_seconds_count 1\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_product_flops_total " + std::to_string(2 * products) + "\n"));
  EXPECT_THAT(text, HasSubstr("intrawarp_product_nonzeros_total " + std::to_string(Reference(a, a).size()) + "\n"));
  EXPECT_THAT(text, HasSubstr("grpc_method=\"Multiply\",grpc_service=\"intrawarp.v1.SparseMatrixService\",grpc_type="
                              "\"server_stream\"} 2\n"));
}

}  // namespace
}  // namespace intrawarp::server
