// SPDX-License-Identifier: Apache-2.0
// Everything of the client library but uploads of volumes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "client/cpp/client.h"
#include "google/rpc/error_details.pb.h"
#include "io/file/digest.h"
#include "tests/client/fake_server.h"
#include "tests/support/eventually.h"
#include "wire/convert.h"

namespace intrawarp::client {
namespace {

v1::DownloadRequest WholeField(const std::string& transform) {
  v1::DownloadRequest request;
  request.set_name(transform);
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  return request;
}

Geometry Grid() {
  Geometry geometry;
  geometry.size = {5, 4, 3};
  geometry.spacing = {0.5, 1, 2};
  geometry.origin = {-10, 20, 30};
  return geometry;
}
constexpr int64_t kVoxels = 5 * 4 * 3;

std::vector<float> Ramp(int64_t count, float first) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i);
  return values;
}

// Calls write(chunk) for pieces of the values.
template <typename Write>
void SendValues(const std::vector<float>& values, size_t chunk_bytes, const Write& write) {
  const auto* bytes = reinterpret_cast<const char*>(values.data());
  const size_t total = values.size() * sizeof(float);
  for (size_t offset = 0; offset < total; offset += chunk_bytes) {
    write(MakeChunk(static_cast<int64_t>(offset), std::string(bytes + offset, std::min(chunk_bytes, total - offset))));
  }
}

v1::FieldHeader MakeFieldHeader() {
  v1::FieldHeader header;
  *header.mutable_geometry() = GeometryToProto(Grid());
  header.set_encoding(v1::FIELD_ENCODING_FLOAT32);
  header.set_total_bytes(kVoxels * 12);
  return header;
}

class ClientStreamTest : public testing::Test {
 protected:
  ClientStreamTest() { client_ = *Client::Connect(server_.target()); }

  FakeServer server_;
  std::unique_ptr<Client> client_;
};

TEST_F(ClientStreamTest, ControlAndBulkUseTwoConnections) {
  std::string control, bulk;
  server_.volumes.get = [&](grpc::ServerContext* context, auto*, auto*) {
    control = context->peer();
    return grpc::Status::OK;
  };
  server_.bulk.download = [&](grpc::ServerContext* context, auto*, auto*) {
    bulk = context->peer();
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "volumes/a");
  };
  GridData data;
  ASSERT_TRUE(client_->GetVolume("volumes/a").ok());
  EXPECT_EQ(client_->DownloadVolume("volumes/a", SinkInto(&data)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(control.empty());
  EXPECT_FALSE(bulk.empty());
  EXPECT_NE(control, bulk);
}

TEST_F(ClientStreamTest, ListsAllPages) {
  server_.volumes.list = [](grpc::ServerContext*, const v1::ListVolumesRequest* request,
                            v1::ListVolumesResponse* response) {
    const int page = request->page_token().empty() ? 0 : std::stoi(request->page_token());
    response->add_volumes()->set_name("volumes/" + std::to_string(page));
    if (page < 2) response->set_next_page_token(std::to_string(page + 1));
    return grpc::Status::OK;
  };
  const auto volumes = client_->ListVolumes();
  ASSERT_TRUE(volumes.ok()) << volumes.status();
  ASSERT_EQ(volumes->size(), 3u);
  EXPECT_EQ((*volumes)[2].name(), "volumes/2");
}

TEST_F(ClientStreamTest, DownloadsIntoMemoryOfTheCaller) {
  const std::vector<float> values = Ramp(kVoxels, 7);
  server_.bulk.download = [&](grpc::ServerContext*, const v1::DownloadRequest* request,
                              grpc::ServerWriter<v1::DownloadResponse>* writer) {
    v1::DownloadResponse response;
    response.mutable_header()->mutable_volume()->set_name(request->name());
    *response.mutable_header()->mutable_volume()->mutable_geometry() = GeometryToProto(Grid());
    response.mutable_header()->set_total_bytes(kVoxels * 4);
    writer->Write(response);
    SendValues(values, 50, [&](const v1::Chunk& chunk) {
      *response.mutable_chunk() = chunk;
      writer->Write(response);
    });
    return grpc::Status::OK;
  };
  std::vector<float> mine(kVoxels);
  const auto volume = client_->DownloadVolume("volumes/a", [&](const Geometry& geometry, int64_t count) {
    EXPECT_EQ(geometry, Grid());
    EXPECT_EQ(count, kVoxels);
    return absl::MakeSpan(mine);
  });
  ASSERT_TRUE(volume.ok()) << volume.status();
  EXPECT_EQ(volume->name(), "volumes/a");
  EXPECT_EQ(mine, values);
}

TEST_F(ClientStreamTest, ADownloadThatEndsEarlyIsDataLoss) {
  server_.bulk.download = [&](grpc::ServerContext*, auto*, grpc::ServerWriter<v1::DownloadResponse>* writer) {
    v1::DownloadResponse response;
    *response.mutable_header()->mutable_field() = MakeFieldHeader();
    response.mutable_header()->set_total_bytes(kVoxels * 12);
    writer->Write(response);
    *response.mutable_chunk() = MakeChunk(0, "abcd");
    writer->Write(response);
    return grpc::Status::OK;
  };
  GridData data;
  const absl::Status status = client_->DownloadField(WholeField("transforms/a"), SinkInto(&data)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("4 of 720"));
}

TEST_F(ClientStreamTest, AWrongChunkEndsTheCallOnTheServerToo) {
  std::promise<bool> cancelled;
  server_.bulk.download = [&](grpc::ServerContext* context, auto*, grpc::ServerWriter<v1::DownloadResponse>* writer) {
    v1::DownloadResponse response;
    *response.mutable_header()->mutable_field() = MakeFieldHeader();
    response.mutable_header()->set_total_bytes(kVoxels * 12);
    writer->Write(response);
    *response.mutable_chunk() = MakeChunk(8, "abcd");
    writer->Write(response);
    cancelled.set_value(Eventually([&] { return context->IsCancelled(); }));
    return grpc::Status::OK;
  };
  GridData data;
  EXPECT_EQ(client_->DownloadField(WholeField("transforms/a"), SinkInto(&data)).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_TRUE(cancelled.get_future().get());
}

TEST_F(ClientStreamTest, ADamagedChunkIsDataLoss) {
  server_.bulk.download = [&](grpc::ServerContext*, auto*, grpc::ServerWriter<v1::DownloadResponse>* writer) {
    v1::DownloadResponse response;
    *response.mutable_header()->mutable_field() = MakeFieldHeader();
    response.mutable_header()->set_total_bytes(kVoxels * 12);
    writer->Write(response);
    *response.mutable_chunk() = MakeChunk(0, std::string(kVoxels * 12, 'x'));
    response.mutable_chunk()->mutable_data()->at(700) ^= 1;
    writer->Write(response);
    return grpc::Status::OK;
  };
  GridData data;
  const absl::Status status = client_->DownloadField(WholeField("transforms/a"), SinkInto(&data)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("crc32c"));
}

// A server that breaks each stream after a chunk.
TEST_F(ClientStreamTest, ADownloadGoesOnWhereItBroke) {
  const std::vector<float> values = Ramp(3 * kVoxels, 7);
  const std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  std::vector<int64_t> offsets;
  std::vector<std::string> etags;
  std::string etag = "first";
  server_.bulk.download = [&](grpc::ServerContext*, const v1::DownloadRequest* request,
                              grpc::ServerWriter<v1::DownloadResponse>* writer) {
    offsets.push_back(request->offset());
    etags.push_back(request->etag());
    if (!request->etag().empty() && request->etag() != etag) {
      return grpc::Status(grpc::StatusCode::ABORTED, "other bytes");
    }
    v1::DownloadResponse response;
    *response.mutable_header()->mutable_field() = MakeFieldHeader();
    response.mutable_header()->set_total_bytes(kVoxels * 12);
    response.mutable_header()->set_etag(etag);
    writer->Write(response);
    *response.mutable_chunk() = MakeChunk(request->offset(), bytes.substr(static_cast<size_t>(request->offset()), 300));
    writer->Write(response);
    return request->offset() + 300 >= kVoxels * 12 ? grpc::Status::OK
                                                   : grpc::Status(grpc::StatusCode::UNAVAILABLE, "reset");
  };
  GridData data;
  const auto header = client_->DownloadField(WholeField("transforms/a"), SinkInto(&data));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(data.values, values);
  EXPECT_THAT(offsets, testing::ElementsAre(0, 300, 600));
  EXPECT_THAT(etags, testing::ElementsAre("", "first", "first"));

  // What is downloaded becomes something else between two streams.
  offsets.clear();
  const auto download = server_.bulk.download;
  server_.bulk.download = [&](grpc::ServerContext* context, const v1::DownloadRequest* request,
                              grpc::ServerWriter<v1::DownloadResponse>* writer) {
    const grpc::Status status = download(context, request, writer);
    etag = "second";
    return status;
  };
  EXPECT_EQ(client_->DownloadField(WholeField("transforms/a"), SinkInto(&data)).status().code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(offsets.size(), 2u);
}

TEST_F(ClientStreamTest, RegisterGivesProgressFieldAndResult) {
  const std::vector<float> field = Ramp(3 * kVoxels, -5);
  server_.registration.register_once = [&](grpc::ServerContext*, const v1::RegisterRequest* request,
                                           grpc::ServerWriter<v1::RegisterResponse>* writer) {
    EXPECT_EQ(request->fixed(), "volumes/f");
    v1::RegisterResponse response;
    for (int i = 0; i < 3; ++i) {
      response.mutable_progress()->set_iteration(i);
      writer->Write(response);
    }
    *response.mutable_field() = MakeFieldHeader();
    writer->Write(response);
    SendValues(field, 64, [&](const v1::Chunk& chunk) {
      *response.mutable_chunk() = chunk;
      writer->Write(response);
    });
    response.mutable_result()->set_transform("transforms/t");
    writer->Write(response);
    return grpc::Status::OK;
  };
  v1::RegisterRequest request;
  request.set_fixed("volumes/f");
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  std::vector<int> iterations;
  GridData data;
  const auto result = client_->Register(
      request, [&](const v1::Progress& progress) { iterations.push_back(progress.iteration()); }, SinkInto(&data));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->transform(), "transforms/t");
  EXPECT_THAT(iterations, testing::ElementsAre(0, 1, 2));
  EXPECT_EQ(data.values, field);
  EXPECT_EQ(data.geometry, Grid());
}

TEST_F(ClientStreamTest, RegisterWithoutAResultIsAnError) {
  server_.registration.register_once = [&](grpc::ServerContext*, auto*, auto*) { return grpc::Status::OK; };
  EXPECT_EQ(client_->Register({}, nullptr, nullptr).status().code(), absl::StatusCode::kInternal);
}

TEST_F(ClientStreamTest, RegisterWithoutTheFieldThatWasAskedForIsDataLoss) {
  server_.registration.register_once = [&](grpc::ServerContext*, auto*,
                                           grpc::ServerWriter<v1::RegisterResponse>* writer) {
    v1::RegisterResponse response;
    response.mutable_result()->set_transform("transforms/t");
    writer->Write(response);
    return grpc::Status::OK;
  };
  v1::RegisterRequest request;
  request.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  GridData data;
  EXPECT_EQ(client_->Register(request, nullptr, nullptr).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Register(request, nullptr, SinkInto(&data)).status().code(), absl::StatusCode::kDataLoss);
  request.clear_field();
  EXPECT_TRUE(client_->Register(request, nullptr, nullptr).ok());
}

using NavigateServerStream = grpc::ServerReaderWriter<v1::NavigateResponse, v1::NavigateRequest>;

// Answers each frame: an odd one with a field that begins with the frame's number, an even one with an error.
grpc::Status AnswerFrames(NavigateServerStream* stream) {
  v1::NavigateRequest request;
  EXPECT_TRUE(stream->Read(&request));
  EXPECT_EQ(request.config().fixed(), "volumes/f");
  int64_t number = 0, missing = 0;
  while (stream->Read(&request)) {
    if (request.has_frame()) {
      number = request.frame().frame_number();
      missing = request.frame().total_bytes();
      continue;
    }
    missing -= static_cast<int64_t>(request.chunk().data().size());
    if (missing > 0) continue;
    v1::NavigateResponse response;
    if (number % 2 == 1) {
      response.mutable_field()->set_frame_number(number);
      *response.mutable_field()->mutable_field() = MakeFieldHeader();
      stream->Write(response);
      SendValues(Ramp(3 * kVoxels, static_cast<float>(number)), 100, [&](const v1::Chunk& chunk) {
        *response.mutable_chunk() = chunk;
        stream->Write(response);
      });
    }
    response.mutable_result()->set_frame_number(number);
    if (number % 2 == 0) response.mutable_result()->mutable_status()->set_code(9);
    stream->Write(response);
  }
  return grpc::Status::OK;
}

TEST_F(ClientStreamTest, NavigateSendsAndReceivesFromTwoThreads) {
  server_.registration.navigate = [](grpc::ServerContext*, NavigateServerStream* stream) {
    return AnswerFrames(stream);
  };
  constexpr int kFrames = 20;
  v1::NavigateConfig config;
  config.set_fixed("volumes/f");
  config.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  const std::unique_ptr<NavigateStream> stream = client_->Navigate(config);
  std::thread sender([&] {
    const std::string bytes(3 << 20, 'x');
    for (int i = 1; i <= kFrames; ++i) {
      Frame frame;
      frame.number = i;
      frame.bytes = bytes;
      EXPECT_TRUE(stream->Send(frame).ok());
    }
    EXPECT_TRUE(stream->CloseSend().ok());
  });
  for (int i = 1; i <= kFrames; ++i) {
    GridData field;
    const auto answer = stream->Receive(SinkInto(&field));
    EXPECT_TRUE(answer.ok() && answer->has_value()) << answer.status();
    if (!answer.ok() || !answer->has_value()) break;
    EXPECT_EQ((*answer)->result.frame_number(), i);
    EXPECT_EQ((*answer)->has_field, i % 2 == 1);
    EXPECT_EQ((*answer)->result.status().code(), i % 2 == 1 ? 0 : 9);
    EXPECT_EQ(field.values, i % 2 == 1 ? Ramp(3 * kVoxels, static_cast<float>(i)) : std::vector<float>());
  }
  const auto end = stream->Receive(nullptr);
  EXPECT_TRUE(end.ok() && !end->has_value()) << end.status();
  sender.join();
}

TEST_F(ClientStreamTest, AFrameNamesItsMaskAndWeights) {
  std::vector<v1::FrameHeader> headers;
  server_.registration.navigate = [&](grpc::ServerContext*, NavigateServerStream* stream) {
    v1::NavigateRequest request;
    v1::NavigateResponse response;
    while (stream->Read(&request)) {
      if (request.has_config()) response.mutable_opened();
      if (request.has_frame()) {
        headers.push_back(request.frame());
        response.mutable_result()->set_frame_number(request.frame().frame_number());
      }
      if (!request.has_chunk()) stream->Write(response);
    }
    return grpc::Status::OK;
  };
  const std::unique_ptr<NavigateStream> stream = client_->Navigate(v1::NavigateConfig());
  Frame frame;
  for (frame.number = 1; frame.number <= 2; ++frame.number) {
    ASSERT_TRUE(stream->Send(frame).ok());
    const auto answer = stream->Receive(nullptr);
    ASSERT_TRUE(answer.ok() && answer->has_value()) << answer.status();
    frame.mask = "volumes/m";
    frame.weight = "volumes/w";
  }
  ASSERT_TRUE(stream->CloseSend().ok());
  EXPECT_TRUE(stream->Receive(nullptr).ok());
  ASSERT_EQ(headers.size(), 2);
  EXPECT_EQ(headers[0].mask() + headers[0].weight(), "");
  EXPECT_EQ(headers[1].mask(), "volumes/m");
  EXPECT_EQ(headers[1].weight(), "volumes/w");
}

TEST_F(ClientStreamTest, NavigateTellsWhyAStreamEnded) {
  server_.registration.navigate = [](grpc::ServerContext*, NavigateServerStream* stream) {
    v1::NavigateRequest request;
    stream->Read(&request);
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "volumes/f: no such volume");
  };
  const std::unique_ptr<NavigateStream> stream = client_->Navigate({});
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = stream->Receive(nullptr).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(status.message(), "volumes/f: no such volume");
  }
  EXPECT_EQ(stream->Send({}).code(), absl::StatusCode::kUnavailable);
}

// A frame's fields in the order of `coarse`, then its result.
grpc::Status AnswerWithFields(NavigateServerStream* stream, const std::vector<bool>& coarse, size_t coarse_values) {
  v1::NavigateRequest request;
  while (!request.has_frame()) EXPECT_TRUE(stream->Read(&request));
  v1::NavigateResponse response;
  for (const bool is_coarse : coarse) {
    response.mutable_field()->set_frame_number(7);
    response.mutable_field()->set_coarse(is_coarse);
    *response.mutable_field()->mutable_field() = MakeFieldHeader();
    stream->Write(response);
    SendValues(Ramp(is_coarse ? coarse_values : 3 * kVoxels, is_coarse ? 100 : 200), 100, [&](const v1::Chunk& chunk) {
      *response.mutable_chunk() = chunk;
      stream->Write(response);
    });
  }
  response.mutable_result()->set_frame_number(7);
  stream->Write(response);
  while (stream->Read(&request)) continue;
  return grpc::Status::OK;
}

TEST_F(ClientStreamTest, NavigateTakesACoarseFieldBeforeTheFinalOne) {
  struct Case {
    std::vector<bool> coarse;
    size_t coarse_values;
    bool asked;
    absl::StatusCode code;
    int received;
  };
  constexpr size_t kWhole = 3 * kVoxels;
  for (const Case& c : {Case{{true, false}, kWhole, true, absl::StatusCode::kOk, 1},
                        Case{{false}, kWhole, true, absl::StatusCode::kOk, 0},
                        Case{{true, false}, kWhole, false, absl::StatusCode::kInternal, 0},
                        Case{{false, true}, kWhole, true, absl::StatusCode::kInternal, 0},
                        Case{{true, true}, kWhole, true, absl::StatusCode::kInternal, 1},
                        Case{{true, false}, kWhole - 3, true, absl::StatusCode::kDataLoss, 0},
                        Case{{true}, kWhole - 3, true, absl::StatusCode::kDataLoss, 0}}) {
    server_.registration.navigate = [&](grpc::ServerContext*, NavigateServerStream* stream) {
      return AnswerWithFields(stream, c.coarse, c.coarse_values);
    };
    v1::NavigateConfig config;
    config.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
    config.set_coarse_field(c.asked);
    const std::unique_ptr<NavigateStream> stream = client_->Navigate(config);
    const std::string bytes(10, 'x');
    Frame frame;
    frame.number = 7;
    frame.bytes = bytes;
    ASSERT_TRUE(stream->Send(frame).ok());
    GridData field, coarse;
    int received = 0;
    const CoarseFieldSink sink{SinkInto(&coarse), [&](const v1::FrameField& header) {
                                 EXPECT_EQ(header.frame_number(), 7);
                                 EXPECT_EQ(coarse.values, Ramp(kWhole, 100));
                                 ++received;
                                 return absl::OkStatus();
                               }};
    const auto answer = stream->Receive(SinkInto(&field), sink);
    EXPECT_EQ(answer.status().code(), c.code) << answer.status();
    EXPECT_EQ(received, c.received);
    if (!answer.ok()) continue;
    EXPECT_TRUE((*answer)->has_field);
    EXPECT_EQ(field.values, Ramp(kWhole, 200));
  }
}

TEST_F(ClientStreamTest, AnErrorOfACoarseFieldsReceiverEndsTheStream) {
  server_.registration.navigate = [](grpc::ServerContext*, NavigateServerStream* stream) {
    return AnswerWithFields(stream, {true, false}, 3 * kVoxels);
  };
  v1::NavigateConfig config;
  config.mutable_field()->set_encoding(v1::FIELD_ENCODING_FLOAT32);
  config.set_coarse_field(true);
  const std::unique_ptr<NavigateStream> stream = client_->Navigate(config);
  Frame frame;
  frame.number = 7;
  ASSERT_TRUE(stream->Send(frame).ok());
  GridData field, coarse;
  const absl::Status full = absl::ResourceExhaustedError("no room on the disk");
  const CoarseFieldSink sink{SinkInto(&coarse), [&](const v1::FrameField&) { return full; }};
  EXPECT_EQ(stream->Receive(SinkInto(&field), sink).status(), full);
}

// One frame of a session that a stream carries; the first stream breaks, the second one resumes.
grpc::Status AnswerOneFrame(NavigateServerStream* stream, const v1::NavigateConfig& config) {
  v1::NavigateResponse response;
  *response.mutable_opened()->mutable_session()->mutable_config() = config;
  if (config.resume()) response.mutable_opened()->set_resumed_from_frame(1);
  stream->Write(response);
  v1::NavigateRequest request;
  EXPECT_TRUE(stream->Read(&request));
  EXPECT_EQ(request.frame().deadline().nanos(), 7000000);
  v1::FrameResult& result = *response.mutable_result();
  result.set_frame_number(request.frame().frame_number());
  if (config.resume()) {
    google::rpc::ErrorInfo info;
    info.set_reason("FRAME_SUPERSEDED");
    result.mutable_status()->set_code(grpc::StatusCode::ABORTED);
    result.mutable_status()->add_details()->PackFrom(info);
  } else {
    result.mutable_report()->add_reasons()->set_cause(v1::VERDICT_CAUSE_LATE);
  }
  stream->Write(response);
  if (!config.resume()) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone");
  response.mutable_closed()->mutable_statistics()->set_frames_late(1);
  stream->Write(response);
  return grpc::Status::OK;
}

TEST_F(ClientStreamTest, NavigateTellsOfItsSessionAndResumesIt) {
  server_.registration.navigate = [](grpc::ServerContext*, NavigateServerStream* stream) {
    v1::NavigateRequest request;
    EXPECT_TRUE(stream->Read(&request));
    EXPECT_EQ(request.config().fixed(), "volumes/f");
    EXPECT_EQ(request.config().session_id(), "s");
    return AnswerOneFrame(stream, request.config());
  };
  v1::NavigateConfig config;
  config.set_fixed("volumes/f");
  config.set_session_id("s");
  const std::unique_ptr<NavigateStream> stream = client_->Navigate(config);
  EXPECT_EQ(stream->Resume().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(stream->opened().has_value());
  ASSERT_TRUE(stream->WaitUntilOpened().ok());
  EXPECT_FALSE(stream->opened()->has_resumed_from_frame());
  Frame frame;
  frame.number = 1;
  frame.deadline = std::chrono::milliseconds(7);
  ASSERT_TRUE(stream->Send(frame).ok());
  const auto late = stream->Receive(nullptr);
  ASSERT_TRUE(late.ok() && late->has_value()) << late.status();
  EXPECT_TRUE((*late)->is_late());
  EXPECT_FALSE((*late)->is_superseded());
  EXPECT_EQ(stream->Receive(nullptr).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(stream->closed().has_value());

  ASSERT_TRUE(stream->Resume().ok());
  EXPECT_EQ(stream->opened()->resumed_from_frame(), 1);
  frame.number = 2;
  ASSERT_TRUE(stream->Send(frame).ok());
  const auto superseded = stream->Receive(nullptr);
  ASSERT_TRUE(superseded.ok() && superseded->has_value()) << superseded.status();
  EXPECT_FALSE((*superseded)->is_late());
  EXPECT_TRUE((*superseded)->is_superseded());
  const auto end = stream->Receive(nullptr);
  EXPECT_TRUE(end.ok() && !end->has_value()) << end.status();
  EXPECT_EQ(stream->closed()->statistics().frames_late(), 1);
}

TEST_F(ClientStreamTest, AnAbandonedNavigationIsCancelled) {
  std::promise<bool> cancelled;
  server_.registration.navigate = [&](grpc::ServerContext* context, NavigateServerStream* stream) {
    v1::NavigateRequest request;
    while (stream->Read(&request)) {
    }
    cancelled.set_value(context->IsCancelled());
    return grpc::Status::OK;
  };
  { const std::unique_ptr<NavigateStream> stream = client_->Navigate({}); }
  EXPECT_TRUE(cancelled.get_future().get());
}

TEST_F(ClientStreamTest, UploadsAMatrix) {
  server_.bulk.upload = [](grpc::ServerContext*, grpc::ServerReader<v1::UploadRequest>* reader,
                           v1::UploadResponse* response) {
    v1::UploadRequest request;
    EXPECT_TRUE(reader->Read(&request));
    *response->mutable_transform()->mutable_affine() = request.header().transform().affine();
    EXPECT_FALSE(reader->Read(&request));
    return grpc::Status::OK;
  };
  AffineMap map = AffineMap::Identity();
  map.m[1][3] = 2.5;
  const auto transform = client_->UploadAffine("m", map);
  ASSERT_TRUE(transform.ok()) << transform.status();
  EXPECT_THAT(transform->affine().values(), testing::ElementsAre(1, 0, 0, 0, 0, 1, 0, 2.5, 0, 0, 1, 0, 0, 0, 0, 1));
}

TEST_F(ClientStreamTest, UploadsAField) {
  const std::vector<float> field = Ramp(3 * kVoxels, 1);
  server_.bulk.upload = [&](grpc::ServerContext*, grpc::ServerReader<v1::UploadRequest>* reader,
                            v1::UploadResponse* response) {
    v1::UploadRequest request;
    EXPECT_TRUE(reader->Read(&request));
    EXPECT_EQ(request.header().sha256(), io::Sha256Of(field.data(), field.size() * 4));
    EXPECT_EQ(request.header().transform().field().total_bytes(), kVoxels * 12);
    EXPECT_EQ(request.header().transform().field().encoding(), v1::FIELD_ENCODING_FLOAT32);
    std::string bytes;
    while (reader->Read(&request)) bytes += request.chunk().data();
    EXPECT_EQ(bytes.size(), field.size() * 4);
    EXPECT_EQ(std::memcmp(bytes.data(), field.data(), bytes.size()), 0);
    response->mutable_transform()->set_name("transforms/f");
    return grpc::Status::OK;
  };
  const auto transform = client_->UploadField("f", Grid(), field);
  ASSERT_TRUE(transform.ok()) << transform.status();
  EXPECT_EQ(transform->name(), "transforms/f");
}

TEST_F(ClientStreamTest, MapsPointsInBatches) {
  std::atomic<int> calls{0};
  server_.transforms.map_points = [&](grpc::ServerContext*, const v1::MapPointsRequest* request,
                                      v1::MapPointsResponse* response) {
    ++calls;
    EXPECT_LE(request->points_size(), 3 * 32768);
    for (double value : request->points()) response->add_points(value + 1);
    return grpc::Status::OK;
  };
  std::vector<Vec3d> points(70000);
  for (size_t i = 0; i < points.size(); ++i) points[i] = {double(i), 2.0 * double(i), -double(i)};
  const auto mapped = client_->MapPoints("transforms/t", points, false);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  ASSERT_EQ(mapped->size(), points.size());
  EXPECT_EQ(calls, 3);
  EXPECT_EQ((*mapped)[69999], (Vec3d{70000, 139999, -69998}));
  EXPECT_TRUE(client_->MapPoints("transforms/t", {}, false)->empty());
}

TEST_F(ClientStreamTest, AWrongNumberOfPointsIsInternal) {
  server_.transforms.map_points = [&](grpc::ServerContext*, auto*, v1::MapPointsResponse* response) {
    response->add_points(1);
    return grpc::Status::OK;
  };
  EXPECT_EQ(client_->MapPoints("transforms/t", {{1, 2, 3}}, true).status().code(), absl::StatusCode::kInternal);
}

TEST_F(ClientStreamTest, HealthIsWhatTheServerSays) {
  auto serving = client_->IsServing();
  ASSERT_TRUE(serving.ok()) << serving.status();
  EXPECT_TRUE(*serving);
  server_.server().GetHealthCheckService()->SetServingStatus(false);
  serving = client_->IsServing();
  ASSERT_TRUE(serving.ok()) << serving.status();
  EXPECT_FALSE(*serving);
  EXPECT_EQ(client_->IsServing("no.such.Service").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace intrawarp::client
