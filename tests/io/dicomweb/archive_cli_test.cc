// SPDX-License-Identifier: Apache-2.0
// intrawarp dicom send and get as processes, against a real archive.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/client/process.h"
#include "tests/io/dicom/dicom_maker.h"
#include "tests/io/dicomweb/http_peer.h"
#include "tests/io/dicomweb/orthanc_fixture.h"
#include "tests/io/io_test.h"

namespace intrawarp::dicomweb {
namespace {

client::ProcessResult RunCli(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), INTRAWARP_CLI);
  return client::RunProcess(arguments);
}

// The command line, by STOW-RS and by C-STORE. Files that are not instances are passed over.
using OrthancCliTest = OrthancTest;

TEST_F(OrthancCliTest, TheCommandLineSendsAndGets) {
  Series("in", 3, EXS_LittleEndianExplicit);
  std::filesystem::create_directories(Path("in/below"));
  Put("in/below/notes.txt", "no DICOM");
  const std::string web = absl::StrCat("--to=https://127.0.0.1:", proxy_port_, "/dicom-web");
  const std::vector<std::string> credentials = {absl::StrCat("--tls_ca=", Path("ca.pem")),
                                                absl::StrCat("--token_file=", Path("token"))};
  client::ProcessResult result = RunCli({"dicom", "send", Path("in"), web, credentials[0], credentials[1]});
  EXPECT_EQ(result.exit_status, 0) << result.err;
  EXPECT_EQ(result.out, "stored: 3, with a warning 0; files not sent, which are not instances: 1\n");
  std::filesystem::remove_all(Path("in/below"));
  ExpectSame(Fetch("back"), FilesOf(Path("in")));

  Series("rle", 2, EXS_RLELossless);
  result = RunCli({"dicom", "send", Path("rle"), absl::StrCat("--to=ORTHANC@127.0.0.1:", dicom_port_)});
  EXPECT_EQ(result.exit_status, 0) << result.err;
  EXPECT_EQ(result.out, "stored: 2, with a warning 0; files not sent, which are not instances: 0\n");
  auto sent = FilesOf(Path("in"));
  sent.merge(FilesOf(Path("rle")));
  ExpectSame(Fetch("all"), sent);

  const auto expect_failure = [&](const std::vector<std::string>& arguments, int exit_status, const std::string& text) {
    const client::ProcessResult failed = RunCli(arguments);
    EXPECT_EQ(failed.exit_status, exit_status) << failed.err;
    EXPECT_NE(failed.err.find(text), std::string::npos) << failed.err;
    for (const char* planted : {"Planted", "4711", kStudy, kToken}) {
      EXPECT_EQ((failed.out + failed.err).find(planted), std::string::npos) << failed.err;
    }
  };
  const std::vector<std::string> get = {"dicom",
                                        "get",
                                        absl::StrCat("--from=", web.substr(5)),
                                        absl::StrCat("--study=", kStudy),
                                        absl::StrCat("--series=", SeriesUid(EXS_RLELossless)),
                                        credentials[0]};
  const auto with = [&](std::vector<std::string> arguments, const std::vector<std::string>& more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  result = RunCli(with(get, {credentials[1], absl::StrCat("--out=", Path("got"))}));
  EXPECT_EQ(result.exit_status, 0) << result.err;
  EXPECT_EQ(result.out, "files: 2\n");
  ExpectSame(FilesOf(Path("got")), FilesOf(Path("rle")));
  expect_failure(with(get, {credentials[1], absl::StrCat("--out=", Path("got"))}), 1, "ALREADY_EXISTS");
  expect_failure(with(get, {absl::StrCat("--out=", Path("not_got"))}), 1, "UNAUTHENTICATED");
  EXPECT_FALSE(std::filesystem::exists(Path("not_got")));
  expect_failure({"dicom", "get", get[2], "--study=1.2", "--series=1.3/4", "--out=x"}, 2, "--series");
  expect_failure({"dicom", "get", get[2], "--study=1.2", "--series=1.3", credentials[0], credentials[1],
                  absl::StrCat("--out=", Path("not_got"))},
                 1, "NOT_FOUND");

  expect_failure({"dicom", "send", Path("in"), web, credentials[0]}, 1, "UNAUTHENTICATED");
  expect_failure({"dicom", "send", Path("in"), web, absl::StrCat("--tls_ca=", Path("other_ca.pem")), credentials[1]}, 1,
                 "UNAUTHENTICATED");
  expect_failure({"dicom", "send", Path("in"), absl::StrCat("--to=NOBODY@127.0.0.1:", dicom_port_)}, 1,
                 "PERMISSION_DENIED");
  expect_failure({"dicom", "send", Path("in"), absl::StrCat("--to=ORTHANC@127.0.0.1:", FreePort())}, 1, "UNAVAILABLE");
  expect_failure({"dicom", "send", Path("none"), web}, 1, "NOT_FOUND");
  std::filesystem::create_directories(Path("empty"));
  expect_failure({"dicom", "send", Path("empty"), web}, 1, "NOT_FOUND");
  expect_failure({"dicom", "send", Path("in")}, 2, "--to");
  expect_failure({"dicom", "send", Path("in"), "--to=nowhere"}, 2, "--to");
  expect_failure({"dicom", "send", Path("in"), "--to=ORTHANC@archive:104"}, 2, "numeric");
  expect_failure({"dicom", "send", Path("in"), "--to=ORTHANC@192.0.2.1:104"}, 2, "--plain");
  expect_failure({"dicom", "send", Path("in"), "--to=http://archive.example/"}, 2, "https");
  expect_failure({"dicom", "send", Path("in"), "--to=http://archive.example/", "--plain", credentials[1]}, 2,
                 "token_file");
  expect_failure({"dicom", "send", Path("in"), web, "--ae_title=ME"}, 2, "--ae_title");
  expect_failure({"dicom", "send", Path("in"), "--to=A@127.0.0.1:104", credentials[1]}, 2, "--token_file");
}

// An archive of a test's own, whose answers end well and lack something.
class GetCliTest : public io::FileTest {
 protected:
  GetCliTest() {
    std::filesystem::create_directories(Path("in"));
    io::DicomMaker maker(Path("in"));
    for (int k = 0; k < 4; ++k) files_.push_back(Get(maker.Save(*maker.Slice({.z = 1.0 * k}), absl::StrCat(k))));
  }
  // What `dicom get` says of an archive that answers so and announces no number of instances.
  client::ProcessResult GetFrom(int status, const std::vector<std::string>& parts,
                                const std::string& end = "\r\n--xyz--") {
    HttpPeer peer([&](const PeerRequest& request, HttpPeer::Wire& wire) {
      if (request.target.find("/series?") != std::string::npos) {
        return wire.Reply(200, "Content-Type: application/dicom+json\r\n",
                          absl::StrCat(R"([{"0020000D":{"vr":"UI","Value":["1.2.3"]},"0020000E":{"vr":"UI","Value":[")",
                                       io::kSeriesUid, "\"]}}]"));
      }
      if (request.target.find("/instances?") != std::string::npos) return wire.Reply(404, "", "");
      std::string body;
      for (const std::string& part : parts) {
        absl::StrAppend(&body, body.empty() ? "" : "\r\n", "--xyz\r\nContent-Type: application/dicom\r\n\r\n", part);
      }
      return wire.Reply(status, "Content-Type: multipart/related; type=\"application/dicom\"; boundary=xyz\r\n",
                        body + end);
    });
    std::filesystem::remove_all(Path("out"));
    return RunCli({"dicom", "get", absl::StrCat("--from=", peer.url(), "/dicom-web"), "--study=1.2.3",
                   absl::StrCat("--series=", io::kSeriesUid), absl::StrCat("--out=", Path("out"))});
  }

  std::vector<std::string> files_;
};

TEST_F(GetCliTest, ASeriesIsWholeOrNotThere) {
  const client::ProcessResult whole = GetFrom(200, files_);
  EXPECT_EQ(whole.exit_status, 0) << whole.err;
  EXPECT_EQ(whole.out, "files: 4\n");
  const auto expect_refusal = [&](const client::ProcessResult& result, const std::string& text) {
    EXPECT_EQ(result.exit_status, 1) << text;
    EXPECT_NE(result.err.find("DATA_LOSS"), std::string::npos) << result.err;
    EXPECT_NE(result.err.find(text), std::string::npos) << result.err;
    EXPECT_FALSE(std::filesystem::exists(Path("out")));
  };
  expect_refusal(GetFrom(206, {files_[0], files_[1], files_[3]}), "HTTP 206");
  expect_refusal(GetFrom(202, {files_[0], files_[1], files_[3]}), "HTTP 202");
  expect_refusal(GetFrom(200, {files_[0], files_[1], files_[1], files_[3]}), "twice");
  std::string changed = files_[1];
  changed.back() = static_cast<char>(changed.back() + 1);
  expect_refusal(GetFrom(200, {files_[0], files_[1], changed, files_[3]}), "different content");
  for (const size_t less : {1, 9, 100, 240}) {
    std::vector<std::string> cut = files_;
    cut[2].resize(cut[2].size() - less);
    expect_refusal(GetFrom(200, cut), "not whole");
    cut = files_;
    cut[3].resize(cut[3].size() - less);
    expect_refusal(GetFrom(200, cut), "not whole");
  }
  expect_refusal(GetFrom(200, files_, ""), "closing delimiter");
  expect_refusal(GetFrom(200, {files_[0], "no DICOM"}), "no DICOM file");
}

}  // namespace
}  // namespace intrawarp::dicomweb
