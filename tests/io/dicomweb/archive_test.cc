// SPDX-License-Identifier: Apache-2.0
// The DICOMweb client against a peer that answers as it likes.
#include "io/dicomweb/archive.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "io/dicomweb/media_type.h"
#include "io/dicomweb/multipart.h"
#include "tests/io/dicomweb/http_peer.h"
#include "tests/io/io_test.h"

namespace intrawarp::dicomweb {
namespace {

using absl::StatusCode;
using io::Fails;
using io::Succeeds;

constexpr char kToken[] = "secret-of-the-hospital.42==";
constexpr char kPlanted[] = "Doe^Jane";
const FoundSeries kSeries = {.study_uid = "1.2.3", .series_uid = "1.2.3.4"};

class Instances final : public InstanceSink {
 public:
  absl::Status Begin() override {
    all.emplace_back();
    return absl::OkStatus();
  }
  absl::Status Append(absl::string_view bytes) override {
    absl::StrAppend(&all.back(), bytes);
    if (on_bytes) return on_bytes();
    return absl::OkStatus();
  }
  absl::Status End() override {
    ++whole;
    return absl::OkStatus();
  }
  std::vector<std::string> all;
  size_t whole = 0;
  std::function<absl::Status()> on_bytes;
};

class ArchiveTest : public io::FileTest {
 protected:
  HttpOptions Options(const HttpPeer& peer) {
    HttpOptions options;
    options.base_url = absl::StrCat(peer.url(), "/dicom-web/");
    options.token_file = Put("token", absl::StrCat(kToken, "\n"));
    options.timeout = std::chrono::seconds(20);
    return options;
  }
  std::unique_ptr<Archive> Make(const HttpOptions& options) {
    auto archive = Archive::Create(options);
    EXPECT_THAT(archive, Succeeds());
    return std::move(*archive);
  }
  // No message holds what only the two sides may know.
  static void ExpectDiscreet(const absl::Status& status) {
    for (const char* text : {kToken, "secret", "Doe", "Jane", "1.2.3", "127.0.0.1", "dicom-web"}) {
      EXPECT_FALSE(absl::StrContains(status.ToString(), text)) << status;
    }
  }
  absl::Status Retrieve(const HttpPeer& peer, Instances& sink, RetrieveLimits limits = {}) {
    const absl::Status status = Make(Options(peer))->Retrieve(kSeries, limits, sink).status();
    ExpectDiscreet(status);
    return status;
  }
};

std::string MultipartOf(const std::vector<std::string>& parts) {
  std::string body;
  for (const std::string& part : parts) {
    absl::StrAppend(&body, "--xyz\r\nContent-Type: application/dicom\r\n\r\n", part, "\r\n");
  }
  return absl::StrCat(body, "--xyz--\r\n");
}
constexpr char kMultipart[] = "Content-Type: multipart/related; type=\"application/dicom\"; boundary=xyz\r\n";
constexpr char kJson[] = "Content-Type: application/dicom+json\r\n";

std::string MatchJson(int i) {
  return absl::StrCat(R"({"0020000D":{"vr":"UI","Value":["1.2.3"]},"0020000E":{"vr":"UI","Value":["1.2.3.)", i,
                      R"("]},"00201209":{"vr":"IS","Value":[3]}})");
}

TEST_F(ArchiveTest, RetrievesInstances) {
  std::mt19937 random(std::random_device{}());
  std::vector<std::string> sent(5);
  for (std::string& part : sent) {
    part.resize(random() % 300000);
    std::generate(part.begin(), part.end(), [&] { return static_cast<char>(random()); });
  }
  HttpPeer peer(
      [&](const PeerRequest&, HttpPeer::Wire& wire) { return wire.Reply(200, kMultipart, MultipartOf(sent)); });
  Instances sink;
  const auto retrieved = Make(Options(peer))->Retrieve(kSeries, {}, sink);
  ASSERT_THAT(retrieved, Succeeds());
  EXPECT_EQ(retrieved->instances, 5);
  EXPECT_TRUE(sink.all == sent);
  ASSERT_EQ(peer.requests().size(), 1u);
  const PeerRequest request = peer.requests().front();
  EXPECT_EQ(request.method, "GET");
  EXPECT_EQ(request.target, "/dicom-web/studies/1.2.3/series/1.2.3.4");
  EXPECT_EQ(request.headers.at("accept"), "multipart/related; type=\"application/dicom\"; transfer-syntax=*");
  EXPECT_EQ(request.headers.at("authorization"), absl::StrCat("Bearer ", kToken));
}

TEST_F(ArchiveTest, AnInstanceAloneIsASeriesOfOne) {
  HttpPeer peer([&](const PeerRequest&, HttpPeer::Wire& wire) {
    return wire.Reply(200, "Content-Type: application/dicom\r\n", "DICM");
  });
  Instances sink;
  EXPECT_THAT(Retrieve(peer, sink), Succeeds());
  EXPECT_EQ(sink.all, std::vector<std::string>{"DICM"});
  EXPECT_EQ(sink.whole, 1u);
}

TEST_F(ArchiveTest, FewerInstancesThanTheArchiveHasAreNoSeries) {
  HttpPeer peer([&](const PeerRequest&, HttpPeer::Wire& wire) {
    return wire.Reply(200, kMultipart, MultipartOf({"a", "b"}));
  });
  FoundSeries series = kSeries;
  Instances sink;
  for (const int64_t instances : {-1, 0, 1, 2}) {
    series.instances = instances;
    EXPECT_THAT(Make(Options(peer))->Retrieve(series, {}, sink), Succeeds());
  }
  series.instances = 3;
  EXPECT_THAT(Make(Options(peer))->Retrieve(series, {}, sink), Fails(StatusCode::kDataLoss, "2 of the 3"));
}

TEST_F(ArchiveTest, AnAnswerThatSaysItIsAPartIsNoSeries) {
  for (const int status : {202, 203, 206}) {
    HttpPeer peer([&](const PeerRequest&, HttpPeer::Wire& wire) {
      return wire.Reply(status, kMultipart, MultipartOf({"a", "b"}));
    });
    Instances sink;
    EXPECT_THAT(Retrieve(peer, sink), Fails(StatusCode::kDataLoss, absl::StrCat("HTTP ", status)));
    EXPECT_EQ(sink.whole, 0u);
  }
}

TEST_F(ArchiveTest, InstancesAreListedInPagesOfAnySize) {
  HttpPeer peer([&](const PeerRequest& request, HttpPeer::Wire& wire) {
    const size_t at = request.target.find("offset=");
    const int offset = std::atoi(request.target.c_str() + at + 7);
    std::string body;
    for (int i = offset; i < std::min(offset + 3, 8); ++i) {
      absl::StrAppend(&body, body.empty() ? "" : ",", R"({"00080018":{"vr":"UI","Value":["1.2.)", i, R"("]}})");
    }
    return wire.Reply(200, kJson, absl::StrCat("[", body, "]"));
  });
  const auto listed = Make(Options(peer))->ListInstances(kSeries, 100);
  ASSERT_THAT(listed, Succeeds());
  EXPECT_EQ(listed->size(), 8u);
  EXPECT_THAT(Make(Options(peer))->ListInstances(kSeries, 7).status(), Fails(StatusCode::kResourceExhausted, ""));
  EXPECT_TRUE(absl::StrContains(peer.requests()[0].target, "/studies/1.2.3/series/1.2.3.4/instances?"));
}

TEST_F(ArchiveTest, UidsThatWouldChangeThePathAreRefused) {
  HttpPeer peer([&](const PeerRequest&, HttpPeer::Wire& wire) { return wire.Reply(404, "", ""); });
  Instances sink;
  EXPECT_THAT(Make(Options(peer))->Retrieve({"1.2/../3", "1"}, {}, sink),
              Fails(StatusCode::kInvalidArgument, "study_uid"));
  EXPECT_THAT(Make(Options(peer))->Retrieve({"1.2", "1?x"}, {}, sink),
              Fails(StatusCode::kInvalidArgument, "series_uid"));
  EXPECT_EQ(peer.requests().size(), 0u);
}

// ---- Redirects
// --------------------------------------------------------------------------------------------------------

TEST_F(ArchiveTest, ARedirectWithinTheOriginIsFollowed) {
  HttpPeer peer([&](const PeerRequest& request, HttpPeer::Wire& wire) {
    if (request.target == "/moved") return wire.Reply(200, kMultipart, MultipartOf({"a"}));
    return wire.Reply(307, "Location: /moved\r\n", "");
  });
  Instances sink;
  EXPECT_THAT(Retrieve(peer, sink), Succeeds());
  EXPECT_EQ(sink.all, std::vector<std::string>{"a"});
}

TEST_F(ArchiveTest, NoRequestAndNoTokenReachesAnotherOrigin) {
  HttpPeer other(
      [&](const PeerRequest&, HttpPeer::Wire& wire) { return wire.Reply(200, kMultipart, MultipartOf({"a"})); });
  const std::vector<std::string> elsewhere = {other.url() + "/x",
                                              absl::StrCat("http://localhost:", other.port(), "/x"),
                                              "file:///etc/passwd",
                                              absl::StrCat("//127.0.0.1:", other.port(), "/x"),
                                              absl::StrCat("http://user@127.0.0.1:", other.port(), "/x"),
                                              "ftp://127.0.0.1/x",
                                              "https://127.0.0.1/x"};
  for (const std::string& location : elsewhere) {
    for (const int status : {301, 302, 303, 307, 308}) {
      HttpPeer peer([&](const PeerRequest&, HttpPeer::Wire& wire) {
        return wire.Reply(status, absl::StrCat("Location: ", location, "\r\n"), "");
      });
      Instances sink;
      EXPECT_THAT(Retrieve(peer, sink), Fails(StatusCode::kFailedPrecondition, "redirect")) << location;
      EXPECT_TRUE(sink.all.empty());
    }
  }
  EXPECT_EQ(other.requests().size(), 0u);
}

TEST_F(ArchiveTest, RedirectsAreBounded) {
  std::atomic<int> count{0};
  HttpPeer peer([&](const PeerRequest&, HttpPeer::Wire& wire) {
    return wire.Reply(302, absl::StrCat("Location: /x", ++count, "\r\n"), "");
  });
  Instances sink;
  EXPECT_THAT(Retrieve(peer, sink), Fails(StatusCode::kFailedPrecondition, "redirect"));
  EXPECT_EQ(count, 6);
}

TEST_F(ArchiveTest, AStoreRequestIsNotRedirected) {
  HttpPeer peer([&](const PeerRequest&, HttpPeer::Wire& wire) { return wire.Reply(307, "Location: /x\r\n", ""); });
  StoredInstances stored;
  EXPECT_THAT(Make(Options(peer))->Store({Put("a", "aa")}, {}, stored),
              Fails(StatusCode::kFailedPrecondition, "redirect"));
  EXPECT_EQ(peer.requests().size(), 1u);
}

// ---- Broken and hostile answers
// -----------------------------------------------------------------------------------------

TEST_F(ArchiveTest, AnswersOfOtherTypesAreNoSeries) {
  for (const char* type :
       {"", "Content-Type: text/html\r\n", "Content-Type: multipart/form-data; boundary=xyz\r\n",
        "Content-Type: multipart/related; type=\"image/jp2\"; boundary=xyz\r\n", "Content-Type: nonsense\r\n",
        "Content-Type: multipart/related; type=\"application/dicom\"\r\n", "Content-Type: application/zip\r\n"}) {
    HttpPeer peer([&](const PeerRequest&, HttpPeer::Wire& wire) {
      return wire.Reply(200, type, absl::StrCat("<html>", kPlanted, MultipartOf({"a"})));
    });
    Instances sink;
    const absl::Status status = Retrieve(peer, sink);
    EXPECT_TRUE(absl::IsUnimplemented(status) || absl::IsInvalidArgument(status)) << type << status;
    EXPECT_TRUE(sink.all.empty()) << type;
  }
  HttpPeer parts([&](const PeerRequest&, HttpPeer::Wire& wire) {
    return wire.Reply(200, kMultipart, "--xyz\r\nContent-Type: image/png\r\n\r\na\r\n--xyz--");
  });
  Instances sink;
  EXPECT_THAT(Retrieve(parts, sink), Fails(StatusCode::kUnimplemented, "content_type"));
}

TEST_F(ArchiveTest, TruncatedAnswersAreDataLoss) {
  const std::string body = MultipartOf({std::string(1000, 'a'), "b"});
  // A length that is not reached, chunks without an end, and an end without a delimiter.
  const std::vector<std::string> heads = {absl::StrCat("Content-Length: ", body.size(), "\r\n\r\n"), "\r\n"};
  for (const std::string& head : heads) {
    HttpPeer peer([&](const PeerRequest&, HttpPeer::Wire& wire) {
      wire.Send(absl::StrCat("HTTP/1.1 200 OK\r\nConnection: close\r\n", kMultipart, head, body.substr(0, 1050)));
      return false;
    });
    Instances sink;
    EXPECT_THAT(Retrieve(peer, sink), Fails(StatusCode::kDataLoss, "")) << head;
    EXPECT_LE(sink.whole, 1u);
  }
  HttpPeer chunked([&](const PeerRequest&, HttpPeer::Wire& wire) {
    wire.Send(absl::StrCat("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n", kMultipart, "\r\n10\r\n--xyz\r\n"));
    return false;
  });
  Instances sink;
  EXPECT_FALSE(Retrieve(chunked, sink).ok());
}

TEST_F(ArchiveTest, AnEndlessBodyEndsAtItsLimit) {
  std::atomic<int64_t> sent{0};
  HttpPeer peer([&](const PeerRequest&, HttpPeer::Wire& wire) {
    wire.Send(absl::StrCat("HTTP/1.1 200 OK\r\n", kMultipart, "\r\n--xyz\r\n\r\n"));
    const std::string piece(65536, 'x');
    while (wire.Send(piece)) sent += 65536;
    return false;
  });
  RetrieveLimits limits;
  limits.max_instance_bytes = 4 << 20;
  Instances sink;
  EXPECT_THAT(Retrieve(peer, sink, limits), Fails(StatusCode::kResourceExhausted, "multipart"));
  EXPECT_LE(sink.all.front().size(), size_t{4} << 20);
  limits = {.max_bytes = 1 << 20};
  EXPECT_THAT(Retrieve(peer, sink = {}, limits), Fails(StatusCode::kResourceExhausted, "larger than allowed"));
  EXPECT_LE(sink.all.front().size(), size_t{1} << 20);
}

TEST_F(ArchiveTest, AnEndlessHeaderEndsAtItsLimit) {
  HttpPeer peer([&](const PeerRequest&, HttpPeer::Wire& wire) {
    wire.Send("HTTP/1.1 200 OK\r\n");
    while (wire.Send(absl::StrCat("X-", kPlanted, ": ", std::string(4000, 'x'), "\r\n"))) {
    }
    return false;
  });
  Instances sink;
  EXPECT_FALSE(Retrieve(peer, sink).ok());
}

TEST_F(ArchiveTest, AnEndlessExplanationOfAnErrorIsNotRead) {
  HttpPeer peer([&](const PeerRequest&, HttpPeer::Wire& wire) {
    wire.Send("HTTP/1.1 500 Oops\r\n\r\n");
    while (wire.Send(std::string(65536, 'x'))) {
    }
    return false;
  });
  Instances sink;
  EXPECT_THAT(Retrieve(peer, sink), Fails(StatusCode::kUnknown, "HTTP 500"));
}

TEST_F(ArchiveTest, ATrickleEndsAfterTheStall) {
  HttpPeer peer([&](const PeerRequest&, HttpPeer::Wire& wire) {
    wire.Send(absl::StrCat("HTTP/1.1 200 OK\r\n", kMultipart, "\r\n--xyz\r\n\r\n"));
    while (wire.Send("x")) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return false;
  });
  HttpOptions options = Options(peer);
  options.stall = std::chrono::seconds(1);
  Instances sink;
  EXPECT_THAT(Make(options)->Retrieve(kSeries, {}, sink), Fails(StatusCode::kDeadlineExceeded, "too slow"));
}

TEST_F(ArchiveTest, SilenceEndsAtTheDeadline) {
  HttpPeer peer([&](const PeerRequest&, HttpPeer::Wire& wire) {
    while (!wire.stopping()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return false;
  });
  HttpOptions options = Options(peer);
  options.timeout = std::chrono::seconds(1);
  Instances sink;
  EXPECT_THAT(Make(options)->Retrieve(kSeries, {}, sink), Fails(StatusCode::kDeadlineExceeded, "too slow"));
}

TEST_F(ArchiveTest, ACallerMayGiveUp) {
  HttpPeer peer([&](const PeerRequest&, HttpPeer::Wire& wire) {
    wire.Send(absl::StrCat("HTTP/1.1 200 OK\r\n", kMultipart, "\r\n--xyz\r\n\r\nabc"));
    while (wire.Send(std::string(4096, 'x'))) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return false;
  });
  std::atomic<bool> cancelled{false};
  HttpOptions options = Options(peer);
  options.cancelled = [&] { return cancelled.load(); };
  Instances sink;
  sink.on_bytes = [&] {
    cancelled = true;
    return absl::OkStatus();
  };
  EXPECT_THAT(Make(options)->Retrieve(kSeries, {}, sink), Fails(StatusCode::kCancelled, "cancelled"));
}

TEST_F(ArchiveTest, TheSinksErrorIsTheCallers) {
  HttpPeer peer(
      [&](const PeerRequest&, HttpPeer::Wire& wire) { return wire.Reply(200, kMultipart, MultipartOf({"a"})); });
  Instances sink;
  sink.on_bytes = [] { return absl::ResourceExhaustedError("the spool is full"); };
  EXPECT_THAT(Retrieve(peer, sink), Fails(StatusCode::kResourceExhausted, "the spool is full"));
}

TEST_F(ArchiveTest, RefusalsHaveTheirCodes) {
  const std::map<int, StatusCode> codes = {{400, StatusCode::kInvalidArgument},
                                           {401, StatusCode::kUnauthenticated},
                                           {403, StatusCode::kPermissionDenied},
                                           {404, StatusCode::kNotFound},
                                           {406, StatusCode::kUnimplemented},
                                           {410, StatusCode::kNotFound},
                                           {413, StatusCode::kResourceExhausted},
                                           {415, StatusCode::kUnimplemented},
                                           {429, StatusCode::kUnavailable},
                                           {500, StatusCode::kUnknown},
                                           {503, StatusCode::kUnavailable},
                                           {504, StatusCode::kUnavailable},
                                           {300, StatusCode::kFailedPrecondition},
                                           {999, StatusCode::kUnknown},
                                           {204, StatusCode::kNotFound}};
  for (const auto& [status, code] : codes) {
    HttpPeer peer([status = status](const PeerRequest&, HttpPeer::Wire& wire) {
      return wire.Reply(status, absl::StrCat("WWW-Authenticate: Bearer realm=\"", kPlanted, "\"\r\nRetry-After: 7\r\n"),
                        status == 204 ? "" : kPlanted);
    });
    Instances sink;
    const absl::Status answer = Retrieve(peer, sink);
    EXPECT_EQ(answer.code(), code) << status << answer;
    if (code == StatusCode::kUnavailable) {
      EXPECT_THAT(answer, Fails(code, "wait 7 s"));
    }
  }
}

TEST_F(ArchiveTest, WhatIsNoHttpIsRefused) {
  for (const char* text : {"", "SSH-2.0-OpenSSH\r\n", "\0\0\0\0", "HTTP/0.9 hello", "HTTP/1.1 200"}) {
    HttpPeer peer([&](const PeerRequest&, HttpPeer::Wire& wire) {
      wire.Send(text);
      return false;
    });
    Instances sink;
    EXPECT_FALSE(Retrieve(peer, sink).ok()) << text;
  }
}

TEST_F(ArchiveTest, NobodyThere) {
  HttpOptions options;
  {
    HttpPeer peer([](const PeerRequest&, HttpPeer::Wire&) { return false; });
    options = Options(peer);
  }
  Instances sink;
  EXPECT_THAT(Make(options)->Retrieve(kSeries, {}, sink), Fails(StatusCode::kUnavailable, "cannot be reached"));
}

// ---- Search
// -----------------------------------------------------------------------------------------------------------

int NumberIn(const std::string& target, const std::string& name) {
  const size_t at = target.find(name + "=");
  return at == std::string::npos ? -1 : std::stoi(target.substr(at + name.size() + 1));
}

// An archive with so many series that answers at most `page` at once, and perhaps ignores limit and offset.
std::string Page(const PeerRequest& request, int count, int page, bool ignores) {
  const int offset = ignores ? 0 : NumberIn(request.target, "offset");
  const int limit = ignores ? count : std::min(page, NumberIn(request.target, "limit"));
  std::string body;
  for (int i = offset; i < std::min(count, offset + limit); ++i)
    absl::StrAppend(&body, body.empty() ? "" : ",", MatchJson(i));
  return absl::StrCat("[", body, "]");
}

TEST_F(ArchiveTest, PagesOfAnySizeMakeOneList) {
  for (const int count : {0, 1, 199, 200, 201, 450}) {
    for (const int page : {7, 200, 10000}) {
      for (const bool ignores : {false, true}) {
        HttpPeer peer([&](const PeerRequest& request, HttpPeer::Wire& wire) {
          return wire.Reply(200, kJson, Page(request, count, page, ignores));
        });
        const auto found = Make(Options(peer))->FindSeries({});
        ASSERT_THAT(found, Succeeds());
        EXPECT_EQ(found->series.size(), static_cast<size_t>(count)) << page << ignores;
        EXPECT_FALSE(found->truncated);
      }
    }
  }
}

TEST_F(ArchiveTest, QueriesAreEscapedAndBounded) {
  HttpPeer peer([&](const PeerRequest& request, HttpPeer::Wire& wire) {
    return wire.Reply(200, kJson, Page(request, 50, 50, false));
  });
  SeriesQuery query;
  query.keys = {{"PatientID", "A&limit=1 /\xc3\xa4#*"}, {"Modality", "CT"}};
  query.max_series = 50;
  ASSERT_THAT(Make(Options(peer))->FindSeries(query), Succeeds());
  const std::string target = peer.requests().front().target;
  EXPECT_EQ(target,
            "/dicom-web/series?Modality=CT&PatientID=A%26limit%3D1%20%2F%C3%A4%23%2A&includefield=00080020&"
            "includefield=00080030&includefield=00081030&includefield=0008103E&includefield=00200011&"
            "includefield=00201209&limit=51&offset=0");
  EXPECT_FALSE(Make(Options(peer))->FindSeries(query)->truncated);
  query.max_series = 49;
  const auto first = Make(Options(peer))->FindSeries(query);
  EXPECT_TRUE(first->truncated);
  EXPECT_EQ(first->series.size(), 49u);
  query.keys = {{"Patient&ID", "x"}};
  EXPECT_THAT(Make(Options(peer))->FindSeries(query), Fails(StatusCode::kInvalidArgument, "query"));
}

TEST_F(ArchiveTest, NoMatchesAndNoJson) {
  HttpPeer none([&](const PeerRequest&, HttpPeer::Wire& wire) { return wire.Send("HTTP/1.1 204 No\r\n\r\n"); });
  EXPECT_EQ(Make(Options(none))->FindSeries({})->series.size(), 0u);
  HttpPeer html([&](const PeerRequest&, HttpPeer::Wire& wire) {
    return wire.Reply(200, "Content-Type: text/html\r\n", kPlanted);
  });
  EXPECT_THAT(Make(Options(html))->FindSeries({}), Fails(StatusCode::kUnimplemented, "content_type"));
  HttpPeer endless([&](const PeerRequest&, HttpPeer::Wire& wire) {
    wire.Send(absl::StrCat("HTTP/1.1 200 OK\r\n", kJson, "\r\n["));
    while (wire.Send(std::string(65536, ' '))) {
    }
    return false;
  });
  EXPECT_THAT(Make(Options(endless))->FindSeries({}), Fails(StatusCode::kResourceExhausted, "larger than allowed"));
}

// A patient comes only with the matches of a search that asks for it, whatever the archive sends.
TEST_F(ArchiveTest, PatientsAreAskedFor) {
  HttpPeer peer([&](const PeerRequest&, HttpPeer::Wire& wire) {
    return wire.Reply(200, kJson,
                      R"([{"0020000D":{"vr":"UI","Value":["1.2"]},"0020000E":{"vr":"UI","Value":["1.3"]},)"
                      R"("00100010":{"vr":"PN","Value":[{"Alphabetic":"Doe^Jane"}]},)"
                      R"("00100020":{"vr":"LO","Value":["42\u0007"]},"00100030":{"vr":"DA","Value":["19700101"]}}])");
  });
  const FoundSeries without = Make(Options(peer))->FindSeries({})->series.at(0);
  EXPECT_EQ(without.patient_name + without.patient_id + without.patient_birth_date, "");
  EXPECT_EQ(peer.requests().front().target.find("001000"), std::string::npos);
  const FoundSeries with = Make(Options(peer))->FindSeries({.with_patient = true})->series.at(0);
  EXPECT_EQ(with.patient_name, kPlanted);
  EXPECT_EQ(with.patient_id, "42");
  EXPECT_EQ(with.patient_birth_date, "19700101");
  EXPECT_NE(peer.requests().back().target.find("includefield=00100010"), std::string::npos);
}

// An archive that invents a series for every question.
TEST_F(ArchiveTest, ASearchWithoutAnEndEnds) {
  std::atomic<int> next{0};
  HttpPeer peer([&](const PeerRequest&, HttpPeer::Wire& wire) {
    return wire.Reply(200, kJson, absl::StrCat("[", MatchJson(next++), "]"));
  });
  EXPECT_TRUE(Make(Options(peer))->FindSeries({.max_series = 100})->truncated);
  EXPECT_THAT(Make(Options(peer))->FindSeries({.max_series = 1 << 20}), Fails(StatusCode::kResourceExhausted, "pages"));
}

// ---- Store
// ------------------------------------------------------------------------------------------------------------

class Parts final : public PartSink {
 public:
  absl::Status Begin(absl::string_view content_type) override {
    EXPECT_EQ(content_type, "application/dicom");
    all.emplace_back();
    return absl::OkStatus();
  }
  absl::Status Append(absl::string_view bytes) override {
    absl::StrAppend(&all.back(), bytes);
    return absl::OkStatus();
  }
  absl::Status End() override { return absl::OkStatus(); }
  std::vector<std::string> all;
};

std::string StoredJson(int stored, const std::vector<int>& failed) {
  std::string good, bad;
  for (int i = 0; i < stored; ++i) absl::StrAppend(&good, i > 0 ? "," : "", "{}");
  for (const int reason : failed) {
    absl::StrAppend(&bad, bad.empty() ? "" : ",", "{\"00081197\":{\"vr\":\"US\",\"Value\":[", reason, "]}}");
  }
  return absl::StrCat("{\"00081199\":{\"vr\":\"SQ\",\"Value\":[", good, "]},\"00081198\":{\"vr\":\"SQ\",\"Value\":[",
                      bad, "]}}");
}

TEST_F(ArchiveTest, StoresFilesInRequestsOfBoundedSize) {
  std::mt19937 random(std::random_device{}());
  std::vector<std::string> paths, sent;
  for (const size_t size : {0, 1, 1000, 700000, 40, 2000000, 5}) {
    std::string bytes(size, '\0');
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
    paths.push_back(Put(absl::StrCat("file", paths.size()), bytes));
    sent.push_back(bytes);
  }
  HttpPeer peer([&](const PeerRequest& request, HttpPeer::Wire& wire) {
    Parts parts;
    const auto type = ParseMediaType(request.headers.at("content-type"));
    auto reader = MultipartReader::Create(type->Parameter("boundary"), {}, parts);
    EXPECT_THAT(reader->Take(request.body), Succeeds());
    EXPECT_THAT(reader->Finish(), Succeeds());
    return wire.Reply(200, kJson, StoredJson(static_cast<int>(parts.all.size()), {}));
  });
  StoredInstances stored;
  ASSERT_THAT(Make(Options(peer))->Store(paths, {.request_bytes = 1000000, .request_files = 3}, stored), Succeeds());
  EXPECT_EQ(stored.stored, 7);
  EXPECT_TRUE(StoreStatus(stored, 7).ok());
  std::vector<std::string> received;
  for (const PeerRequest& request : peer.requests()) {
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.target, "/dicom-web/studies");
    EXPECT_EQ(request.headers.at("accept"), "application/dicom+json");
    EXPECT_EQ(request.headers.at("authorization"), absl::StrCat("Bearer ", kToken));
    const auto type = ParseMediaType(request.headers.at("content-type"));
    EXPECT_EQ(type->name, "multipart/related");
    EXPECT_EQ(type->Parameter("type"), "application/dicom");
    Parts parts;
    auto reader = MultipartReader::Create(type->Parameter("boundary"), {}, parts);
    ASSERT_THAT(reader->Take(request.body), Succeeds());
    received.insert(received.end(), parts.all.begin(), parts.all.end());
  }
  EXPECT_TRUE(received == sent);
  // 3 (full of files), 2 (the third would be too large), 2: file5 alone, then the rest.
  EXPECT_EQ(peer.requests().size(), 4u);
}

TEST_F(ArchiveTest, FailuresAreCountedByReason) {
  HttpPeer peer([&](const PeerRequest&, HttpPeer::Wire& wire) {
    return wire.Reply(202, kJson, StoredJson(1, {0xa700, 0xa700, 0x0122}));
  });
  std::vector<std::string> paths;
  for (int i = 0; i < 5; ++i) paths.push_back(Put(absl::StrCat("f", i), "x"));
  StoredInstances stored;
  ASSERT_THAT(Make(Options(peer))->Store(paths, {}, stored), Succeeds());
  EXPECT_EQ(stored.stored, 1);
  const absl::Status status = StoreStatus(stored, 5);
  EXPECT_THAT(status, Fails(StatusCode::kResourceExhausted, "did not store 4 of 5"));
  EXPECT_THAT(status, Fails(StatusCode::kResourceExhausted, "2 for 0xA700 (out of resources)"));
  EXPECT_THAT(status, Fails(StatusCode::kResourceExhausted, "1 for 0x0122 (SOP class not supported)"));
  EXPECT_THAT(status, Fails(StatusCode::kResourceExhausted, "1 for a reason that it does not say"));
  ExpectDiscreet(status);
}

TEST_F(ArchiveTest, AnswersToAStoreRequest) {
  struct Case {
    int status;
    std::string type, body;
    StatusCode code;  // of Store
    int64_t stored = 0;
  };
  const std::vector<Case> cases = {
      {200, kJson, StoredJson(2, {}), StatusCode::kOk, 2},
      {200, "Content-Type: application/dicom+xml\r\n", "<x/>", StatusCode::kOk, 2},
      {202, "Content-Type: application/dicom+xml\r\n", "<x/>", StatusCode::kOk, 0},
      {200, "", "", StatusCode::kOk, 2},
      // The page where a person logs in.
      {200, "Content-Type: text/html\r\n", kPlanted, StatusCode::kUnimplemented, 0},
      {200, "Content-Type: text/plain\r\n", "", StatusCode::kUnimplemented, 0},
      {200, "Content-Type: ?\r\n", kPlanted, StatusCode::kUnimplemented, 0},
      {200, kJson, StoredJson(1, {}), StatusCode::kOk, 1},
      {200, kJson, StoredJson(3, {}), StatusCode::kDataLoss, 0},
      {200, kJson, StoredJson(2, {1}), StatusCode::kDataLoss, 0},
      {200, kJson, "[", StatusCode::kDataLoss, 0},
      {409, kJson, StoredJson(0, {0xa900, 0xa900}), StatusCode::kOk, 0},
      {409, "", kPlanted, StatusCode::kOk, 0},
      {400, kJson, kPlanted, StatusCode::kInvalidArgument, 0},
      {401, "", kPlanted, StatusCode::kUnauthenticated, 0},
      {503, "Retry-After: 30\r\n", kPlanted, StatusCode::kUnavailable, 0},
  };
  const std::vector<std::string> paths = {Put("a", "aaa"), Put("b", "bbb")};
  for (const Case& c : cases) {
    HttpPeer peer([&](const PeerRequest&, HttpPeer::Wire& wire) { return wire.Reply(c.status, c.type, c.body); });
    StoredInstances stored;
    const absl::Status status = Make(Options(peer))->Store(paths, {}, stored);
    EXPECT_EQ(status.code(), c.code) << c.status << c.body << status;
    EXPECT_EQ(stored.stored, c.stored) << c.status << c.body;
    ExpectDiscreet(status);
    if (status.ok()) {
      EXPECT_EQ(StoreStatus(stored, 2).ok(), c.stored == 2) << c.status << c.body;
    }
  }
}

// A refusal before the body is read, as a proxy gives it, is that refusal and not a broken connection.
TEST_F(ArchiveTest, ARefusalBeforeTheBodyIsARefusal) {
  HttpPeer peer(
      [&](const PeerRequest&, HttpPeer::Wire& wire) {
        wire.Reply(413, "Connection: close\r\n", "");
        return false;
      },
      /*reads_body=*/false);
  StoredInstances stored;
  EXPECT_THAT(Make(Options(peer))->Store({Put("a", std::string(8 << 20, 'x'))}, {}, stored),
              Fails(StatusCode::kResourceExhausted, "HTTP 413"));
}

TEST_F(ArchiveTest, FilesThatAreGoneAreNamedAsFiles) {
  HttpPeer peer([&](const PeerRequest&, HttpPeer::Wire& wire) { return wire.Reply(200, kJson, StoredJson(1, {})); });
  StoredInstances stored;
  EXPECT_THAT(Make(Options(peer))->Store({Path("none")}, {}, stored), Fails(StatusCode::kNotFound, "file:"));
  EXPECT_THAT(Make(Options(peer))->Store({folder_.string()}, {}, stored), Fails(StatusCode::kInvalidArgument, "file:"));
  EXPECT_EQ(peer.requests().size(), 0u);
}

// ---- Configuration
// ----------------------------------------------------------------------------------------------------

TEST_F(ArchiveTest, UrlsThatAreRefused) {
  for (const char* url :
       {"", "archive", "ftp://127.0.0.1/", "file:///etc/passwd", "http://user:pw@127.0.0.1/", "https://x/?a=b",
        "https://x/#a", "https://a b/", "https://", "gopher://127.0.0.1/", "http://archive.example/dicom-web",
        "http://127.0.0.1.evil.example/", "https://x/\r\nHost: y"}) {
    HttpOptions options;
    options.base_url = url;
    EXPECT_THAT(Archive::Create(options), Fails(StatusCode::kInvalidArgument, "url:")) << url;
  }
  for (const char* url :
       {"http://localhost:1/x", "http://127.9.9.9/", "http://[::1]:80/x", "https://archive.example/"}) {
    HttpOptions options;
    options.base_url = url;
    EXPECT_THAT(Archive::Create(options), Succeeds()) << url;
  }
}

TEST_F(ArchiveTest, ATokenNeverCrossesANetworkInPlainText) {
  HttpOptions options;
  options.base_url = "http://archive.example/dicom-web";
  options.allow_plain_text = true;
  EXPECT_THAT(Archive::Create(options), Succeeds());
  options.token_file = Put("token", kToken);
  EXPECT_THAT(Archive::Create(options), Fails(StatusCode::kInvalidArgument, "token_file:"));
}

TEST_F(ArchiveTest, FilesThatHoldNoTokenAreRefused) {
  HttpOptions options;
  options.base_url = "https://archive.example/dicom-web";
  for (const std::string& bad : {std::string(), std::string("two words"), std::string("a\r\nX-Header: b"),
                                 std::string("\xff"), std::string("a\0b", 3)}) {
    options.token_file = Put("bad", bad);
    const absl::Status status = Archive::Create(options).status();
    EXPECT_THAT(status, Fails(StatusCode::kInvalidArgument, "token_file:"));
    EXPECT_FALSE(absl::StrContains(status.message(), "words"));
  }
  options.token_file = Put("long", std::string(100000, 'x'));
  EXPECT_THAT(Archive::Create(options), Fails(StatusCode::kResourceExhausted, "token_file:"));
  options.token_file = Path("none");
  EXPECT_THAT(Archive::Create(options), Fails(StatusCode::kNotFound, "token_file:"));
}

TEST_F(ArchiveTest, ATokenThatWasRenewedIsUsed) {
  HttpPeer peer([&](const PeerRequest&, HttpPeer::Wire& wire) { return wire.Reply(200, kJson, "[]"); });
  const auto archive = Make(Options(peer));
  ASSERT_THAT(archive->FindSeries({}), Succeeds());
  Put("token", "another");
  ASSERT_THAT(archive->FindSeries({}), Succeeds());
  EXPECT_EQ(peer.requests().back().headers.at("authorization"), "Bearer another");
}

// Proxies and credentials of the environment would see what only the archive may.
TEST_F(ArchiveTest, TheEnvironmentDoesNotMatter) {
  HttpPeer proxy([&](const PeerRequest&, HttpPeer::Wire& wire) { return wire.Reply(200, kJson, "[]"); });
  HttpPeer peer([&](const PeerRequest&, HttpPeer::Wire& wire) { return wire.Reply(200, kJson, "[]"); });
  for (const char* name : {"http_proxy", "all_proxy", "ALL_PROXY"}) setenv(name, proxy.url().c_str(), 1);
  setenv("no_proxy", "", 1);
  EXPECT_THAT(Make(Options(peer))->FindSeries({}), Succeeds());
  for (const char* name : {"http_proxy", "all_proxy", "ALL_PROXY", "no_proxy"}) unsetenv(name);
  EXPECT_EQ(proxy.requests().size(), 0u);
  EXPECT_EQ(peer.requests().size(), 1u);
}

}  // namespace
}  // namespace intrawarp::dicomweb
