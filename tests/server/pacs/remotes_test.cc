// SPDX-License-Identifier: Apache-2.0
// The parts of imports that need no network: the list of archives, queries, texts, and whose an instance is.
#include "server/pacs/remotes.h"

#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "io/dicom/dicom.h"
#include "server/context/limits.h"
#include "server/pacs/dicom_text.h"
#include "server/pacs/running_moves.h"
#include "server/pacs/search_rate.h"
#include "server/pacs/series_intake.h"
#include "server/pacs/series_query.h"
#include "tests/io/io_test.h"

namespace intrawarp::server {
namespace {

using io::Fails;
using io::Succeeds;

TEST(RemotesTest, AreRead) {
  const auto remotes = ParseRemotes(
      "# archives\n\nmain get ORTHANC 192.0.2.9:4242 tls patients=stage instances=700 bytes=2GiB\n"
      "old\tmove ARCHIVE [2001:DB8::1]:104 plain patients=none associations=1\nthird get X 10.0.0.1:1 plain\n");
  ASSERT_THAT(remotes, Succeeds());
  ASSERT_EQ(remotes->size(), 3);
  const Remote& main = (*remotes)[0];
  EXPECT_EQ(main.name, "main");
  EXPECT_EQ(main.kind, RemoteKind::kGet);
  EXPECT_EQ(main.ae_title, "ORTHANC");
  EXPECT_EQ(main.host, "192.0.2.9");
  EXPECT_EQ(main.port, 4242);
  EXPECT_TRUE(main.tls);
  EXPECT_TRUE(main.patients.Has(Role::kStage));
  EXPECT_FALSE(main.patients.Has(Role::kFrame));
  EXPECT_EQ(main.limits.max_instances, 700);
  EXPECT_EQ(main.limits.max_bytes, int64_t{2} << 30);
  EXPECT_EQ(main.limits.ae_title, "remote/main");
  EXPECT_EQ((*remotes)[1].kind, RemoteKind::kMove);
  EXPECT_EQ((*remotes)[1].host, "2001:db8::1");
  EXPECT_TRUE((*remotes)[1].patients.empty());
  EXPECT_EQ((*remotes)[1].limits.max_associations, 1);
  EXPECT_EQ((*remotes)[2].patients, Roles(Role::kAdmin));
}

TEST(RemotesTest, DicomwebArchivesAreRead) {
  const auto remotes = ParseRemotes(
      "web dicomweb https://pacs.example:8443/dicom-web ca=/etc/ca.pem token_file=/etc/token patients=stage "
      "instances=700 bytes=2GiB\nupper dicomweb HTTPS://pacs.example/\nhere dicomweb http://127.0.0.1:8042/dicom-web\n"
      "away dicomweb http://192.0.2.1/dicom-web plain\n");
  ASSERT_THAT(remotes, Succeeds());
  ASSERT_EQ(remotes->size(), 4);
  const Remote& web = (*remotes)[0];
  EXPECT_EQ(web.kind, RemoteKind::kDicomweb);
  EXPECT_EQ(web.http.base_url, "https://pacs.example:8443/dicom-web");
  EXPECT_EQ(web.http.authorities_file, "/etc/ca.pem");
  EXPECT_EQ(web.http.token_file, "/etc/token");
  EXPECT_TRUE(web.tls);
  EXPECT_TRUE(web.patients.Has(Role::kStage));
  EXPECT_EQ(web.limits.max_instances, 700);
  EXPECT_EQ(web.limits.max_bytes, int64_t{2} << 30);
  EXPECT_EQ(web.limits.ae_title, "remote/web");
  EXPECT_TRUE((*remotes)[1].tls);
  EXPECT_FALSE((*remotes)[2].tls);
  EXPECT_FALSE((*remotes)[2].http.allow_plain_text);
  EXPECT_FALSE((*remotes)[3].tls);
  EXPECT_TRUE((*remotes)[3].http.allow_plain_text);
}

TEST(RemotesTest, WrongLinesAreNamedByNumberAlone) {
  for (const char* line : {"a dicomweb",
                           "a dicomweb geheim",
                           "a/b dicomweb https://geheim/",
                           "a dicomweb http://192.0.2.1/geheim",
                           "a dicomweb http://192.0.2.1/geheim plain token_file=/geheim",
                           "a dicomweb https://geheim/ associations=2",
                           "a dicomweb https://geheim/ tls",
                           "a dicomweb https://geheim/ bytes=0",
                           "a dicomweb https://geheim/ ca=",
                           "first dicomweb https://geheim/",
                           "a",
                           "a get X 1.2.3.4:104",
                           "a/b get X 1.2.3.4:104 tls",
                           "a fetch X 1.2.3.4:104 tls",
                           "a get X:Y 1.2.3.4:104 tls",
                           "a get X pacs.example:104 tls",
                           "a get X 1.2.3.4 tls",
                           "a get X 1.2.3.4:0 tls",
                           "a get X 1.2.3.4:65536 tls",
                           "a get X [::1:104 tls",
                           "a get X ::1]:104 tls",
                           "a get X 1.2.3.4:104 clear",
                           "a get X 1.2.3.4:104 tls patients=all",
                           "a get X 1.2.3.4:104 tls bytes=0",
                           "a get X 1.2.3.4:104 tls geheim=1",
                           "first get X 1.2.3.4:104 tls"}) {
    const auto parsed = ParseRemotes(absl::StrCat("first get A 1.2.3.4:1 plain\n", line));
    EXPECT_THAT(parsed, Fails(absl::StatusCode::kInvalidArgument, "line 2: ")) << line;
    EXPECT_EQ(parsed.status().message().find("geheim"), absl::string_view::npos);
  }
}

TEST(RemotesTest, AMoveNeedsThePortAndThePeer) {
  const auto remotes = ParseRemotes("a get A 1.2.3.4:1 plain\nb move B 1.2.3.4:2 plain\n");
  const auto peers = DicomPeers::Parse("B 1.2.3.4 -\n", false), others = DicomPeers::Parse("A 1.2.3.4 -\n", false);
  ASSERT_TRUE(remotes.ok() && peers.ok() && others.ok());
  EXPECT_THAT(CheckMoves(*remotes, true, *peers), Succeeds());
  EXPECT_THAT(CheckMoves(*remotes, false, *peers), Fails(absl::StatusCode::kInvalidArgument, "archive 2"));
  EXPECT_THAT(CheckMoves(*remotes, true, *others), Fails(absl::StatusCode::kInvalidArgument, "archive 2"));
}

TEST(SeriesQueryTest, ListsNoWholeArchive) {
  EXPECT_FALSE(CheckQuery({}, true).ok());
  SeriesQuery query;
  query.modality = "CT";
  EXPECT_FALSE(CheckQuery(query, true).ok());
  query.date_to = "20200101";
  EXPECT_FALSE(CheckQuery(query, true).ok());
  query.date_from = "20191301";
  EXPECT_FALSE(CheckQuery(query, true).ok());
  query.date_from = "20191231";
  EXPECT_THAT(CheckQuery(query, true), Succeeds());
  for (const char* wrong : {"*", "**", "?", "* *", "^*"}) {
    SeriesQuery vague;
    vague.patient_id = wrong;
    EXPECT_FALSE(CheckQuery(vague, true).ok()) << wrong;
    vague.patient_id = absl::StrCat(wrong, "1");
    EXPECT_THAT(CheckQuery(vague, true), Succeeds()) << wrong;
  }
  query.patient_name = std::string("a\0b", 3);
  EXPECT_FALSE(CheckQuery(query, true).ok());
  query.patient_name = std::string(257, 'a');
  EXPECT_FALSE(CheckQuery(query, true).ok());
  query.patient_name = "";
  query.modality = "CT\\MR";
  EXPECT_FALSE(CheckQuery(query, true).ok());
  query.modality = "";
  query.max_series = kMaxSeriesMatches + 1;
  EXPECT_FALSE(CheckQuery(query, true).ok());
  EXPECT_FALSE(CheckSeriesName({"1.2", ""}).ok());
  EXPECT_FALSE(CheckSeriesName({"1.2", "1.2*"}).ok());
  for (const char* wrong : {"..", "1..2", "1.02", ".1", "1.", "1.2/3"})
    EXPECT_FALSE(CheckSeriesName({"1.2", wrong}).ok());
  EXPECT_THAT(CheckSeriesName({"1.2", "1.0.3"}), Succeeds());
}

// Who may not see patients must not read their names by asking which letter comes next.
TEST(SeriesQueryTest, HiddenKeysAreWholeValuesAndStandAlone) {
  const std::vector<std::pair<const char*, std::string SeriesQuery::*>> keys = {
      {"patient_id", &SeriesQuery::patient_id},
      {"patient_name", &SeriesQuery::patient_name},
      {"accession_number", &SeriesQuery::accession_number}};
  for (const auto& [field, key] : keys) {
    for (const char* wild : {"M*", "*1", "MUELLE?^ANNA", "M*R^A??A"}) {
      SeriesQuery query;
      query.*key = wild;
      EXPECT_THAT(CheckQuery(query, true), Succeeds()) << field << wild;
      EXPECT_THAT(CheckQuery(query, false), Fails(absl::StatusCode::kInvalidArgument, field)) << wild;
    }
    SeriesQuery query;
    query.*key = "MUELLER^ANNA";
    EXPECT_THAT(CheckQuery(query, false), Succeeds()) << field;
    query.date_from = "20260101";
    query.modality = "CT";
    EXPECT_THAT(CheckQuery(query, false), Succeeds()) << field;
    query.study = "1.2.3";
    EXPECT_THAT(CheckQuery(query, false), Fails(absl::StatusCode::kInvalidArgument, field));
    EXPECT_THAT(CheckQuery(query, true), Succeeds());
    query.study = "";
    for (const auto& [other_field, other] : keys) {
      if (other == key) continue;
      query.*other = "4711";
      EXPECT_THAT(CheckQuery(query, false), Fails(absl::StatusCode::kInvalidArgument, "must stand without"));
      query.*other = "";
    }
  }
}

TEST(SearchRateTest, ACallerWhoMayNotSeePatientsAsksSeldom) {
  SearchRate rate;
  SearchRate::Time now{std::chrono::hours(1)};
  const auto asked = [&](const std::string& who, bool sees) {
    int count = 0;
    while (count < 1000 && rate.Take(who, sees, now)) ++count;
    return count;
  };
  EXPECT_EQ(asked("stage", false), kBlindSearchesAMinute);
  EXPECT_EQ(asked("other", false), kBlindSearchesAMinute);
  EXPECT_EQ(asked("admin", true), kSearchesAMinute);
  now += std::chrono::seconds(20);
  EXPECT_EQ(asked("stage", false), kBlindSearchesAMinute / 3);
  now += std::chrono::hours(20);
  EXPECT_EQ(asked("stage", false), kBlindSearchesAMinute);
}

TEST(DicomTextTest, BecomesUtf8) {
  EXPECT_EQ(ShownText("  plain ", ""), "plain");
  EXPECT_EQ(ShownText("M\xfcller", "ISO_IR 100"), "M\xc3\xbcller");
  EXPECT_EQ(ShownText("M\xc3\xbcller", "ISO_IR 192"), "M\xc3\xbcller");
  EXPECT_EQ(ShownText("M\xfcller", ""), "M?ller");
  EXPECT_EQ(ShownText("M\xfcller", "ISO_IR 192"), "M?ller");
  EXPECT_EQ(ShownText("a\x1b$B\n\tb", "\\ISO 2022 IR 87"), "a $B  b");
  EXPECT_EQ(ShownText(std::string(1000, 'x'), "").size(), kMaxTextBytes);
  std::string long_text;
  for (int i = 0; i < 200; ++i) long_text += "\xe2\x82\xac";
  const std::string cut = ShownText(long_text, "ISO_IR 192");
  EXPECT_EQ(cut.size() % 3, 0);
  EXPECT_GT(cut.size(), kMaxTextBytes - 3);
}

// No bytes make anything else of it than UTF-8, by a second decoder.
TEST(DicomTextTest, AnyBytesBecomeWellFormed) {
  std::mt19937 random(std::random_device{}());
  for (int run = 0; run < 20000; ++run) {
    std::string bytes(random() % 12, '\0');
    for (char& c : bytes) c = static_cast<char>(random() % 3 == 0 ? random() % 256 : 0x80 + random() % 128);
    for (const char* set : {"", "ISO_IR 100", "ISO_IR 192", "GB18030"}) {
      const std::string shown = ShownText(bytes, set);
      for (size_t i = 0; i < shown.size();) {
        const auto first = static_cast<unsigned char>(shown[i]);
        const size_t size = first < 0x80 ? 1 : first >> 5 == 6 ? 2 : first >> 4 == 14 ? 3 : first >> 3 == 30 ? 4 : 0;
        ASSERT_NE(size, 0);
        ASSERT_LE(i + size, shown.size());
        uint32_t code = size == 1 ? first : first & (0xffu >> (size + 1));
        for (size_t k = 1; k < size; ++k) {
          ASSERT_EQ(static_cast<unsigned char>(shown[i + k]) >> 6, 2);
          code = code << 6 | (static_cast<unsigned char>(shown[i + k]) & 0x3f);
        }
        ASSERT_TRUE(code >= 0x20 && (code < 0x7f || code > 0x9f) && (code < 0xd800 || code > 0xdfff) &&
                    code <= 0x10ffff);
        ASSERT_TRUE(size == 1 || code >= (size == 2 ? 0x80u : size == 3 ? 0x800u : 0x10000u));
        i += size;
      }
    }
  }
}

class RunningMovesTest : public io::FileTest {
 protected:
  RunningMovesTest() {
    SpoolOptions options;
    options.folder = folder_.string();
    options.max_bytes = 1 << 20;
    spool_ = *InstanceSpool::Open(options);
  }
  std::shared_ptr<SeriesIntake> Intake(const std::string& series) {
    return *SeriesIntake::Open(*spool_, metrics_, limits_, {"1.2", series});
  }

  std::unique_ptr<InstanceSpool> spool_;
  Registry registry_;
  const PacsMetrics metrics_{registry_};
  DicomPeer limits_;
};

TEST_F(RunningMovesTest, AnInstanceIsFoundByItsMoveOrItsSeries) {
  RunningMoves moves(0xffff);
  const auto a = Intake("1.2.1"), b = Intake("1.2.2");
  const uint16_t first = moves.Begin("ARCHIVE", a), second = moves.Begin("ARCHIVE", b);
  EXPECT_NE(first, 0);
  EXPECT_NE(second, 0);
  EXPECT_NE(first, second);
  EXPECT_EQ(moves.Named(first, "ARCHIVE"), a);
  EXPECT_EQ(moves.Named(first, "OTHER"), nullptr);
  EXPECT_EQ(moves.Of("ARCHIVE", io::SeriesHash("1.2.2"), 7).intake, b);
  EXPECT_EQ(moves.Of("OTHER", io::SeriesHash("1.2.2"), 7).intake, nullptr);
  EXPECT_EQ(moves.Of("ARCHIVE", io::SeriesHash("1.2.3"), 7).intake, nullptr);
  moves.End(second, 7);
  EXPECT_EQ(moves.Named(second, "ARCHIVE"), nullptr);
  // An association that was open then is late; a later association brings a series of its own.
  EXPECT_TRUE(moves.Of("ARCHIVE", io::SeriesHash("1.2.2"), 7).is_late);
  EXPECT_FALSE(moves.Of("ARCHIVE", io::SeriesHash("1.2.2"), 8).is_late);
  EXPECT_FALSE(moves.Of("ARCHIVE", io::SeriesHash("1.2.1"), 7).is_late);
  EXPECT_EQ(moves.Of("ARCHIVE", io::SeriesHash("1.2.1"), 7).intake, a);
}

TEST_F(RunningMovesTest, AnIntakeTakesItsSeriesAlone) {
  const auto intake = Intake("1.2.1");
  auto file = intake->NewFile();
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->Append("no DICOM").ok() && (*file)->Close().ok());
  EXPECT_THAT(intake->Add("1.2.1.1", *std::move(file)), testing::Not(Succeeds()));
  EXPECT_FALSE(intake->Has("1.2.1.1"));
  EXPECT_EQ(intake->progress().received, 0);
  EXPECT_EQ(spool_->bytes(), 0);
  EXPECT_EQ(spool_->instances(), 0);
  const auto series = intake->Take();
  ASSERT_NE(series, nullptr);
  EXPECT_EQ(series->key.series, io::SeriesHash("1.2.1"));
  EXPECT_EQ(intake->Take(), nullptr);
}

}  // namespace
}  // namespace intrawarp::server
