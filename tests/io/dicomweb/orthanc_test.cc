// SPDX-License-Identifier: Apache-2.0
// The DICOMweb client, and sending and fetching by the command line's functions, against a real archive.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/dicom_archive.h"
#include "io/dicom/dicom.h"
#include "io/dicomweb/archive.h"
#include "tests/io/dicomweb/orthanc_fixture.h"

namespace intrawarp::dicomweb {
namespace {

using absl::StatusCode;
using io::Fails;
using io::Succeeds;

TEST_F(OrthancTest, ASeriesGoesOutAndComesBackAsItWas) {
  const auto archive = Make(Secure());
  for (const auto& [name, syntax] :
       std::map<std::string, E_TransferSyntax>{{"plain", EXS_LittleEndianExplicit},
                                               {"implicit", EXS_LittleEndianImplicit},
                                               {"rle", EXS_RLELossless},
                                               {"deflated", EXS_DeflatedLittleEndianExplicit}}) {
    SCOPED_TRACE(name);
    const std::vector<std::string> paths = Series(name, 12, syntax);
    StoredInstances stored;
    ASSERT_THAT(archive->Store(paths, {.request_files = 5}, stored), Succeeds());
    ASSERT_THAT(StoreStatus(stored, 12), Succeeds());

    SeriesQuery query;
    query.keys = {{"StudyInstanceUID", kStudy}, {"SeriesInstanceUID", SeriesUid(syntax)}};
    query.with_patient = true;
    const auto found = archive->FindSeries(query);
    ASSERT_THAT(found, Succeeds());
    ASSERT_EQ(found->series.size(), 1u);
    EXPECT_EQ(found->series[0].modality, "CT");
    EXPECT_EQ(found->series[0].instances, 12);
    EXPECT_EQ(found->series[0].patient_id, "4711");
    EXPECT_EQ(found->series[0].patient_name, "Planted^Name");

    FilesSink sink(Path(name + "_back"));
    const auto retrieved = archive->Retrieve(found->series[0], {}, sink);
    ASSERT_THAT(retrieved, Succeeds());
    EXPECT_EQ(retrieved->instances, 12);
    ExpectSame(FilesOf(Path(name + "_back")), FilesOf(Path(name)));
    const auto before = io::ReadDicom(Path(name)), after = io::ReadDicom(Path(name + "_back"));
    ASSERT_THAT(before, Succeeds());
    ASSERT_THAT(after, Succeeds());
    EXPECT_TRUE(before->volume.pixels == after->volume.pixels);
    EXPECT_TRUE(before->volume.geometry == after->volume.geometry);
  }
}

// A folder goes the way of the command line: by STOW-RS and by C-STORE, and back. Files that are not instances are
// passed over.
TEST_F(OrthancTest, FoldersGoOutAndComeBack) {
  Series("in", 3, EXS_LittleEndianExplicit);
  std::filesystem::create_directories(Path("in/below"));
  Put("in/below/notes.txt", "no DICOM");
  const auto found = cli::FindDicomFiles(Path("in"));
  ASSERT_THAT(found, Succeeds());
  EXPECT_EQ(found->files.size(), 3u);
  EXPECT_EQ(found->others, 1);
  StoredInstances stored;
  ASSERT_THAT(cli::SendByStow(Secure(), found->files, stored), Succeeds());
  EXPECT_THAT(StoreStatus(stored, 3), Succeeds());
  std::filesystem::remove_all(Path("in/below"));
  ExpectSame(Fetch("back"), FilesOf(Path("in")));

  Series("rle", 2, EXS_RLELossless);
  absl::StatusOr<cli::StorePeer> peer = cli::ParseStorePeer(absl::StrCat("ORTHANC@127.0.0.1:", dicom_port_));
  ASSERT_THAT(peer, Succeeds());
  peer->calling_ae = "INTRAWARP";
  stored = {};
  ASSERT_THAT(cli::SendByStore(*peer, cli::FindDicomFiles(Path("rle"))->files, stored), Succeeds());
  EXPECT_THAT(StoreStatus(stored, 2), Succeeds());
  auto sent = FilesOf(Path("in"));
  sent.merge(FilesOf(Path("rle")));
  ExpectSame(Fetch("all"), sent);

  const std::string series = SeriesUid(EXS_RLELossless);
  const absl::StatusOr<int64_t> files = cli::FetchSeries(Secure(), kStudy, series, Path("got"));
  ASSERT_THAT(files, Succeeds());
  EXPECT_EQ(*files, 2);
  ExpectSame(FilesOf(Path("got")), FilesOf(Path("rle")));
  EXPECT_THAT(cli::FetchSeries(Secure(), kStudy, series, Path("got")), Fails(StatusCode::kAlreadyExists, ""));
  EXPECT_THAT(cli::FetchSeries(Secure(), kStudy, "1.2.3", Path("none")), Fails(StatusCode::kNotFound, ""));
  EXPECT_FALSE(std::filesystem::exists(Path("none")));

  peer->called_ae = "NOBODY";
  EXPECT_THAT(cli::SendByStore(*peer, found->files, stored), Fails(StatusCode::kPermissionDenied, ""));
  peer->port = FreePort();
  EXPECT_THAT(cli::SendByStore(*peer, found->files, stored), Fails(StatusCode::kUnavailable, ""));
  EXPECT_THAT(cli::FindDicomFiles(Path("none")), Fails(StatusCode::kNotFound, ""));
  std::filesystem::create_directories(Path("empty"));
  EXPECT_THAT(cli::FindDicomFiles(Path("empty")), Fails(StatusCode::kNotFound, "no DICOM"));
  for (const char* bad : {"ORTHANC", "ORTHANC@archive:104", "@127.0.0.1:104", "A@127.0.0.1", "A@127.0.0.1:0",
                          "A@127.0.0.1:65536", "A B@127.0.0.1:104", "A@::1:104", "A@[::1:104", "A@[127.0.0.1]:104"}) {
    EXPECT_THAT(cli::ParseStorePeer(bad), Fails(StatusCode::kInvalidArgument, "")) << bad;
  }
  EXPECT_EQ(cli::ParseStorePeer("A@[::1]:104")->host, "::1");
}

TEST_F(OrthancTest, PagesOfManySeries) {
  std::vector<std::string> paths;
  std::filesystem::create_directories(Path("many"));
  io::DicomMaker maker(Path("many"));
  for (int k = 0; k < 230; ++k) {
    io::SliceSpec spec;
    spec.columns = spec.rows = 4;
    spec.series = absl::StrCat(kStudy, ".9.", k);
    const auto file = maker.Slice(spec);
    file->getDataset()->putAndInsertString(DCM_StudyInstanceUID, kStudy);
    file->getDataset()->putAndInsertString(DCM_PatientID, "4711");
    paths.push_back(maker.Save(*file, absl::StrCat("f", k)));
  }
  const auto archive = Make(Plain());
  StoredInstances stored;
  ASSERT_THAT(archive->Store(paths, {}, stored), Succeeds());
  ASSERT_EQ(stored.stored, 230);
  const auto found = archive->FindSeries({});
  ASSERT_THAT(found, Succeeds());
  std::set<std::string> uids;
  for (const FoundSeries& series : found->series) uids.insert(series.series_uid);
  EXPECT_EQ(uids.size(), 230u);
  EXPECT_TRUE(archive->FindSeries({.max_series = 100})->truncated);
  EXPECT_EQ(archive->FindSeries({.keys = {{"PatientID", "nobody"}}})->series.size(), 0u);
}

TEST_F(OrthancTest, WhatIsNotThereAndWhatIsNoImage) {
  const auto archive = Make(Plain());
  FilesSink sink(Path("none"));
  EXPECT_THAT(archive->Retrieve({.study_uid = "1.2", .series_uid = "1.3"}, {}, sink), Fails(StatusCode::kNotFound, ""));
  StoredInstances stored;
  const std::vector<std::string> paths = {Put("nonsense", "Planted^Name is no DICOM"),
                                          Series("plain", 1, EXS_LittleEndianExplicit)[0]};
  const absl::Status sent = archive->Store(paths, {}, stored);
  const absl::Status status = sent.ok() ? StoreStatus(stored, 2) : sent;
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.message().find("Planted"), absl::string_view::npos);
}

TEST_F(OrthancTest, WithoutTheTokenOrTheAuthorityThereIsNoAnswer) {
  HttpOptions options = Secure();
  options.token_file = "";
  EXPECT_THAT(Make(options)->FindSeries({}), Fails(StatusCode::kUnauthenticated, "HTTP 401"));
  options.token_file = Put("wrong", "another");
  EXPECT_THAT(Make(options)->FindSeries({}), Fails(StatusCode::kUnauthenticated, "HTTP 401"));
  StoredInstances stored;
  EXPECT_THAT(Make(options)->Store(Series("plain", 3, EXS_LittleEndianExplicit), {}, stored),
              Fails(StatusCode::kUnauthenticated, "HTTP 401"));

  options = Secure();
  options.authorities_file = Path("other_ca.pem");
  EXPECT_THAT(Make(options)->FindSeries({}), Fails(StatusCode::kUnauthenticated, "tls:"));
  options.authorities_file = "";  // the system's
  EXPECT_THAT(Make(options)->FindSeries({}), Fails(StatusCode::kUnauthenticated, "tls:"));
  options.authorities_file = Put("nothing", "");
  EXPECT_THAT(Make(options)->FindSeries({}), Fails(StatusCode::kInvalidArgument, "authorities_file:"));
  // A certificate of 127.0.0.1 and localhost does not do for another address.
  options = Secure();
  options.base_url = absl::StrCat("https://127.0.0.2:", proxy_port_, "/dicom-web");
  EXPECT_FALSE(Make(options)->FindSeries({}).ok());
  options = Plain();
  options.base_url = absl::StrCat("https://127.0.0.1:", orthanc_port_, "/dicom-web");
  EXPECT_THAT(Make(options)->FindSeries({}), Fails(StatusCode::kUnauthenticated, "tls: the handshake"));
}

}  // namespace
}  // namespace intrawarp::dicomweb
