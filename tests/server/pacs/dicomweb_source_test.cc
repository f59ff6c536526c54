// SPDX-License-Identifier: Apache-2.0
// An archive that speaks DICOMweb as a source of series, against a peer that answers as it likes.
#include "server/pacs/dicomweb_source.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "io/dicom/file_meta.h"
#include "server/context/limits.h"
#include "server/pacs/dicomweb_remote.h"
#include "tests/io/dicom/dicom_maker.h"
#include "tests/io/dicomweb/http_peer.h"
#include "tests/io/io_test.h"

namespace intrawarp::server {
namespace {

using absl::StatusCode;
using dicomweb::HttpPeer;
using dicomweb::PeerRequest;
using io::Fails;
using io::Succeeds;

constexpr char kStudy[] = "1.2.826.0.1.3680043.2.1125.7.1";

class DicomwebSourceTest : public io::FileTest {
 protected:
  DicomwebSourceTest() {
    for (const char* name : {"spool", "in"}) std::filesystem::create_directories(Path(name));
    SpoolOptions options;
    options.folder = Path("spool");
    options.max_bytes = 64 << 20;
    spool_ = std::move(*InstanceSpool::Open(options));
    limits_.ae_title = "remote/web";
    limits_.max_bytes = 32 << 20;
    limits_.max_instances = 100;
  }

  // Whole files of a series.
  std::vector<std::string> Slices(int count, const std::string& series = io::kSeriesUid) {
    io::DicomMaker maker(Path("in"));
    std::vector<std::string> files;
    for (int k = 0; k < count; ++k) {
      io::SliceSpec spec;
      spec.series = series;
      spec.z = k;
      const auto file = maker.Slice(spec);
      file->getDataset()->putAndInsertString(DCM_PatientName, "Planted^Name");
      files.push_back(Get(maker.Save(*file, absl::StrCat("f", k))));
    }
    return files;
  }
  static std::string Match(int64_t instances, const std::string& more = "") {
    const std::string count =
        instances < 0 ? "" : absl::StrCat(",\"00201209\":{\"vr\":\"IS\",\"Value\":[", instances, "]}");
    return absl::StrCat("[{\"0020000D\":{\"vr\":\"UI\",\"Value\":[\"", kStudy,
                        "\"]},\"0020000E\":{\"vr\":\"UI\",\"Value\":[\"", io::kSeriesUid, "\"]}", count, more, "}]");
  }
  static bool IsSearch(const PeerRequest& request) { return absl::StrContains(request.target, "/series?"); }
  static bool ReplyJson(HttpPeer::Wire& wire, const std::string& json) {
    return wire.Reply(200, "Content-Type: application/dicom+json\r\n", json);
  }
  static bool ReplyParts(HttpPeer::Wire& wire, const std::vector<std::string>& parts) {
    std::string body;
    for (const std::string& part : parts) {
      absl::StrAppend(&body, "--xyz\r\nContent-Type: application/dicom\r\n\r\n", part, "\r\n");
    }
    return wire.Reply(200, "Content-Type: multipart/related; type=\"application/dicom\"; boundary=xyz\r\n",
                      absl::StrCat(body, "--xyz--"));
  }
  std::unique_ptr<DicomwebSource> Source(const HttpPeer& peer) {
    dicomweb::HttpOptions http;
    http.base_url = peer.url();
    http.timeout = std::chrono::seconds(30);
    auto source = DicomwebSource::Create(http, limits_, metrics_);
    EXPECT_THAT(source, Succeeds());
    return std::move(*source);
  }
  std::shared_ptr<SeriesIntake> Intake() {
    auto intake = SeriesIntake::Open(*spool_, metrics_, limits_, {kStudy, io::kSeriesUid});
    EXPECT_THAT(intake, Succeeds());
    return *intake;
  }
  // The outcome of retrieving from an archive that answers so.
  absl::Status Retrieve(int64_t instances, const std::vector<std::string>& parts,
                        std::shared_ptr<SeriesIntake>* taken = nullptr) {
    HttpPeer peer([&](const PeerRequest& request, HttpPeer::Wire& wire) {
      return IsSearch(request) ? ReplyJson(wire, Match(instances)) : ReplyParts(wire, parts);
    });
    const std::shared_ptr<SeriesIntake> intake = Intake();
    if (taken != nullptr) *taken = intake;
    const absl::Status status = Source(peer)->Retrieve(*intake);
    for (const char* text : {"Planted", kStudy, io::kSeriesUid, "127.0.0.1"}) {
      EXPECT_FALSE(absl::StrContains(status.message(), text)) << status;
    }
    return status;
  }

  std::unique_ptr<InstanceSpool> spool_;
  Registry registry_;
  const PacsMetrics metrics_{registry_};
  DicomPeer limits_;
};

TEST_F(DicomwebSourceTest, ASeriesComesIntoTheIntake) {
  for (const int64_t said : {-1, 4}) {
    std::shared_ptr<SeriesIntake> intake;
    ASSERT_THAT(Retrieve(said, Slices(4), &intake), Succeeds());
    EXPECT_EQ(intake->progress().received, 4);
    EXPECT_EQ(intake->progress().total, said);
    const auto series = intake->Take();
    ASSERT_EQ(series->files.size(), 4u);
    const std::vector<std::string> sent = Slices(4);
    std::multiset<size_t> sizes, sent_sizes;
    for (const auto& [name, file] : series->files) sizes.insert(Get(file->path()).size());
    for (const std::string& file : sent) sent_sizes.insert(file.size());
    EXPECT_EQ(sizes, sent_sizes);
  }
}

TEST_F(DicomwebSourceTest, InstancesThatAreMissingMakeNoSeries) {
  EXPECT_THAT(Retrieve(5, Slices(4)), Fails(StatusCode::kDataLoss, "4 of the 5"));
  std::vector<std::string> twice = Slices(3);
  twice.push_back(twice.front());
  EXPECT_THAT(Retrieve(4, twice), Fails(StatusCode::kDataLoss, "twice"));
  EXPECT_THAT(Retrieve(3, twice), Succeeds());
  // An archive that says no number: one instance may stand in the place of another.
  EXPECT_THAT(Retrieve(-1, twice), Fails(StatusCode::kDataLoss, "twice"));
}

// An archive that says no number, and lists the instances.
TEST_F(DicomwebSourceTest, InstancesThatAreListedMustCome) {
  const std::vector<std::string> files = Slices(4);
  std::string list;
  for (size_t k = 0; k < files.size(); ++k) {
    const auto meta = io::ReadFileMeta(Path(absl::StrCat("in/f", k)));
    ASSERT_THAT(meta, Succeeds());
    absl::StrAppend(&list, list.empty() ? "" : ",", R"({"00080018":{"vr":"UI","Value":[")", meta->sop_instance,
                    R"("]}})");
  }
  const auto retrieve = [&](const std::vector<std::string>& parts) {
    HttpPeer peer([&](const PeerRequest& request, HttpPeer::Wire& wire) {
      if (IsSearch(request)) return ReplyJson(wire, Match(-1));
      if (absl::StrContains(request.target, "/instances?")) return ReplyJson(wire, absl::StrCat("[", list, "]"));
      return ReplyParts(wire, parts);
    });
    const auto intake = Intake();
    const absl::Status status = Source(peer)->Retrieve(*intake);
    EXPECT_EQ(intake->progress().total, 4);
    return status;
  };
  EXPECT_THAT(retrieve(files), Succeeds());
  EXPECT_THAT(retrieve({files[0], files[1], files[2]}), Fails(StatusCode::kDataLoss, "3 of the 4"));
  EXPECT_THAT(retrieve({files[0], files[1], files[1], files[3]}), Fails(StatusCode::kDataLoss, "twice"));
}

// Each part ends as it should, and a file does not.
TEST_F(DicomwebSourceTest, AFileThatIsCutMakesNoSeries) {
  for (const int64_t said : {-1, 3}) {
    std::vector<std::string> files = Slices(3);
    files[1].resize(files[1].size() - 9);
    EXPECT_THAT(Retrieve(said, files), Fails(StatusCode::kDataLoss, "cannot be read"));
  }
}

TEST_F(DicomwebSourceTest, AnInstanceHasOneContentAndASeriesOnePatient) {
  std::vector<std::string> files = Slices(3);
  std::string other = files[1];
  other.back() = static_cast<char>(other.back() + 1);
  files.push_back(other);
  EXPECT_THAT(Retrieve(3, files), Fails(StatusCode::kDataLoss, "different content"));
  files = Slices(3);
  const size_t at = files[0].find("Planted^Name");
  ASSERT_NE(at, std::string::npos);
  files[0].replace(at, 7, "Another");
  EXPECT_THAT(Retrieve(3, files), Fails(StatusCode::kDataLoss, ""));
}

TEST_F(DicomwebSourceTest, WhatIsNoImageOfTheSeriesIsRefused) {
  EXPECT_THAT(Retrieve(1, {"no DICOM at all"}), Fails(StatusCode::kDataLoss, "no DICOM file"));
  EXPECT_THAT(Retrieve(1, {Slices(1)[0].substr(0, 400)}), Fails(StatusCode::kDataLoss, ""));
  EXPECT_THAT(Retrieve(1, Slices(1, "1.2.3")), Fails(StatusCode::kDataLoss, "another series"));
  // A report in the place of an image.
  std::string report = Slices(1)[0];
  const std::string ct = "1.2.840.10008.5.1.4.1.1.2";
  for (size_t at = report.find(ct); at != std::string::npos; at = report.find(ct, at + 1)) {
    report.replace(at, ct.size(), "1.2.840.10008.5.1.4.1.1.9");
  }
  EXPECT_THAT(Retrieve(1, {report}), Fails(StatusCode::kUnimplemented, "not images"));
}

TEST_F(DicomwebSourceTest, LimitsOfTheRemoteHold) {
  EXPECT_THAT(Retrieve(101, Slices(1)), Fails(StatusCode::kResourceExhausted, "too many instances"));
  limits_.max_bytes = 3000;
  EXPECT_THAT(Retrieve(-1, Slices(10)), Fails(StatusCode::kResourceExhausted, ""));
  limits_ = DicomPeer();
  limits_.ae_title = "remote/few";
  limits_.max_instances = 2;
  EXPECT_THAT(Retrieve(-1, Slices(3)), Fails(StatusCode::kResourceExhausted, ""));
}

TEST_F(DicomwebSourceTest, NothingStaysOfASeriesThatFailed) {
  (void)Retrieve(5, Slices(4));
  EXPECT_EQ(spool_->instances(), 0);
  EXPECT_EQ(spool_->bytes(), 0);
}

TEST_F(DicomwebSourceTest, ARefusalIsTheArchivesAndNotTheCallers) {
  for (const auto& [status, code] : std::map<int, StatusCode>{{400, StatusCode::kFailedPrecondition},
                                                              {401, StatusCode::kFailedPrecondition},
                                                              {403, StatusCode::kFailedPrecondition},
                                                              {404, StatusCode::kFailedPrecondition},
                                                              {406, StatusCode::kFailedPrecondition},
                                                              {500, StatusCode::kUnavailable},
                                                              {503, StatusCode::kUnavailable}}) {
    HttpPeer peer([status = status](const PeerRequest&, HttpPeer::Wire& wire) {
      return wire.Reply(status, "WWW-Authenticate: Bearer realm=\"Planted\"\r\n", "Planted^Name");
    });
    const auto intake = Intake();
    for (const absl::Status& answer :
         {Source(peer)->Echo({}), Source(peer)->Find({}, {}).status(), Source(peer)->Retrieve(*intake)}) {
      EXPECT_THAT(answer, Fails(code, absl::StrCat("HTTP ", status)));
      EXPECT_FALSE(absl::StrContains(answer.message(), "Planted"));
    }
  }
  HttpPeer none([](const PeerRequest&, HttpPeer::Wire& wire) { return ReplyJson(wire, "[]"); });
  const auto intake = Intake();
  EXPECT_THAT(Source(none)->Retrieve(*intake), Fails(StatusCode::kNotFound, "no such series"));
  EXPECT_THAT(Source(none)->Echo({}), Succeeds());
  HttpPeer broken([](const PeerRequest&, HttpPeer::Wire& wire) { return ReplyJson(wire, "[{"); });
  EXPECT_THAT(Source(broken)->Echo({}), Fails(StatusCode::kUnavailable, "json"));
}

TEST_F(DicomwebSourceTest, RequestsAreCountedByKindAndOutcome) {
  const auto counted = [&](const char* request, const char* outcome) {
    const std::string line =
        absl::StrCat("intrawarp_dicomweb_requests_total{outcome=\"", outcome, "\",request=\"", request, "\"} ");
    const std::string text = registry_.Scrape();
    const size_t at = text.find(line);
    return at == std::string::npos ? -1 : std::atof(text.c_str() + at + line.size());
  };
  EXPECT_EQ(counted("search", "done"), 0);  // there from the start
  ASSERT_THAT(Retrieve(4, Slices(4)), Succeeds());
  EXPECT_EQ(counted("search", "done"), 1);
  EXPECT_EQ(counted("retrieve", "done"), 1);
  EXPECT_FALSE(Retrieve(5, Slices(4)).ok());
  EXPECT_EQ(counted("retrieve", "unusable"), 1);
  for (const auto& [status, outcome] : std::map<int, const char*>{{401, "refused"},
                                                                  {403, "refused"},
                                                                  {404, "not_found"},
                                                                  {406, "unusable"},
                                                                  {413, "too_large"},
                                                                  {503, "unavailable"}}) {
    HttpPeer peer([status = status](const PeerRequest& request, HttpPeer::Wire& wire) {
      return IsSearch(request) ? ReplyJson(wire, Match(4)) : wire.Reply(status, "", "");
    });
    const double before = counted("retrieve", outcome);
    EXPECT_FALSE(Source(peer)->Retrieve(*Intake()).ok());
    EXPECT_EQ(counted("retrieve", outcome), before + 1) << status;
  }
}

TEST_F(DicomwebSourceTest, ACancelledImportEnds) {
  std::shared_ptr<SeriesIntake> intake = Intake();
  HttpPeer peer([&](const PeerRequest& request, HttpPeer::Wire& wire) {
    if (IsSearch(request)) return ReplyJson(wire, Match(3));
    intake->Cancel();
    while (!wire.stopping()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return false;
  });
  EXPECT_THAT(Source(peer)->Retrieve(*intake), Fails(StatusCode::kCancelled, ""));
}

TEST_F(DicomwebSourceTest, ASearchEndsAtItsDeadline) {
  HttpPeer peer([](const PeerRequest&, HttpPeer::Wire& wire) {
    while (!wire.stopping()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return false;
  });
  SourceCall call;
  call.end = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
  EXPECT_THAT(Source(peer)->Find({}, call), Fails(StatusCode::kDeadlineExceeded, ""));
  call.end = std::chrono::steady_clock::now() - std::chrono::seconds(5);
  EXPECT_THAT(Source(peer)->Find({}, call), Fails(StatusCode::kDeadlineExceeded, ""));
}

// Pages that each bring one series more, slowly.
TEST_F(DicomwebSourceTest, TheDeadlineIsThatOfAllPagesTogether) {
  std::atomic<int> pages{0};
  HttpPeer peer([&](const PeerRequest&, HttpPeer::Wire& wire) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const std::string uid = absl::StrCat("1.2.3.", ++pages);
    return ReplyJson(wire, absl::StrReplaceAll(Match(1), {{io::kSeriesUid, uid}}));
  });
  SourceCall call;
  call.end = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  SeriesQuery query;
  query.max_series = 100;
  EXPECT_THAT(Source(peer)->Find(query, call), Fails(StatusCode::kDeadlineExceeded, ""));
  EXPECT_LT(pages, 100);
}

TEST_F(DicomwebSourceTest, QueriesAndMatches) {
  HttpPeer peer([&](const PeerRequest&, HttpPeer::Wire& wire) {
    return ReplyJson(wire,
                     Match(22, R"(,"00080060":{"vr":"CS","Value":["CT"]},"00080020":{"vr":"DA","Value":["20260101"]},)"
                               R"("00100010":{"vr":"PN","Value":[{"Alphabetic":"Planted^Name"}]})"));
  });
  SeriesQuery query;
  query.patient_id = "4*";
  query.date_from = "20250101";
  query.modality = "CT";
  auto matches = Source(peer)->Find(query, {});
  ASSERT_THAT(matches, Succeeds());
  ASSERT_EQ(matches->series.size(), 1u);
  EXPECT_EQ(matches->series[0].name, (SeriesName{kStudy, io::kSeriesUid}));
  EXPECT_EQ(matches->series[0].modality, "CT");
  EXPECT_EQ(matches->series[0].study_date, "20260101");
  EXPECT_EQ(matches->series[0].instances, 22);
  EXPECT_EQ(matches->series[0].patient_name, "");
  EXPECT_TRUE(absl::StrContains(peer.requests().front().target,
                                "/series?Modality=CT&PatientID=4%2A&StudyDate=20250101-&includefield="));
  query.with_patient = true;
  EXPECT_EQ(Source(peer)->Find(query, {})->series[0].patient_name, "Planted^Name");
  // An archive that ignores the key.
  query.modality = "MR";
  EXPECT_EQ(Source(peer)->Find(query, {})->series.size(), 0u);
  query = SeriesQuery();
  query.study = "1.2.3";
  EXPECT_EQ(Source(peer)->Find(query, {})->series.size(), 0u);
}

absl::StatusOr<dicomweb::HttpOptions> Parse(absl::string_view line, std::vector<absl::string_view>& others) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  return ParseDicomwebRemote(words, others);
}

TEST(DicomwebRemote, Words) {
  std::vector<absl::string_view> others;
  auto http = Parse("https://archive.example:8443/dicom-web ca=/etc/ca.pem bytes=1MiB token_file=/etc/token", others);
  ASSERT_THAT(http, Succeeds());
  EXPECT_EQ(http->base_url, "https://archive.example:8443/dicom-web");
  EXPECT_EQ(http->authorities_file, "/etc/ca.pem");
  EXPECT_EQ(http->token_file, "/etc/token");
  EXPECT_FALSE(http->allow_plain_text);
  EXPECT_EQ(others, std::vector<absl::string_view>{"bytes=1MiB"});
  EXPECT_THAT(Parse("http://127.0.0.1:8042/dicom-web token_file=/etc/token", others), Succeeds());
  EXPECT_TRUE(Parse("http://192.0.2.1/dicom-web plain", others)->allow_plain_text);
  for (const char* bad : {"", "archive", "ftp://x/", "http://192.0.2.1/", "http://192.0.2.1/ plain token_file=/t",
                          "https://u:secret@x/", "https://x/ ca=", "https://x/ token_file="}) {
    const absl::Status status = Parse(bad, others).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bad;
    EXPECT_FALSE(absl::StrContains(status.message(), "secret"));
  }
}

}  // namespace
}  // namespace intrawarp::server
