// SPDX-License-Identifier: Apache-2.0
#include "io/dicomweb/dicom_json.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/io/io_test.h"

namespace intrawarp::dicomweb {
namespace {

using absl::StatusCode;
using io::Fails;
using io::Succeeds;

std::string Match(const std::string& study, const std::string& series, const std::string& more = "") {
  return absl::StrCat(R"({"0020000D":{"vr":"UI","Value":[)", study, R"(]},"0020000E":{"vr":"UI","Value":[)", series,
                      "]}", more, "}");
}

TEST(DicomJson, FindsSeries) {
  const std::string text = absl::StrCat(
      "[",
      Match("\"1.2\"", "\"1.2.3\"",
            R"(,"00080060":{"vr":"CS","Value":["CT"]},"00201209":{"vr":"IS","Value":[22]},"00100010":{"vr":"PN"})"),
      ",", Match("\"1.2\"", "\"1.2.4\"", R"(,"00201209":{"vr":"IS","Value":["7"]},"00080060":{"vr":"CS"})"), "]");
  const absl::StatusOr<FoundSeriesList> found = ParseFoundSeries(text);
  ASSERT_THAT(found, Succeeds());
  ASSERT_EQ(found->series.size(), 2u);
  EXPECT_EQ(found->series[0].study_uid, "1.2");
  EXPECT_EQ(found->series[0].series_uid, "1.2.3");
  EXPECT_EQ(found->series[0].modality, "CT");
  EXPECT_EQ(found->series[0].instances, 22);
  EXPECT_EQ(found->series[1].modality, "");
  EXPECT_EQ(found->series[1].instances, 7);
  EXPECT_EQ(ParseFoundSeries("[]")->series.size(), 0u);
}

TEST(DicomJson, TextsAreThoseOfAPage) {
  const std::string more = absl::StrCat(
      R"(,"00080020":{"Value":["20260102"]},"00080030":{"Value":["101112.345"]},"00200011":{"Value":["3"]})",
      R"(,"00081030":{"Value":["a\nb\u001bc\u009bd\u00a0"]},"0008103E":{"Value":["\u00e4"]},"00100010":{"Value":[{"Ideographic":"x"}]})",
      R"(,"00100030":{"Value":["1970-01-01"]},"00100020":{"Value":[")", std::string(300, 'x'), R"("]})");
  const auto found = ParseFoundSeries(absl::StrCat("[", Match("\"1.2\"", "\"1.3\"", more), "]"));
  ASSERT_THAT(found, Succeeds());
  const FoundSeries& series = found->series.at(0);
  EXPECT_EQ(series.study_date, "20260102");
  EXPECT_EQ(series.study_time, "101112");
  EXPECT_EQ(series.series_number, "3");
  EXPECT_EQ(series.study_description, "abcd\xc2\xa0");
  EXPECT_EQ(series.series_description, "\xc3\xa4");
  EXPECT_EQ(series.patient_name, "");
  EXPECT_EQ(series.patient_birth_date, "");
  EXPECT_LE(series.patient_id.size(), 256u);
}

// A match whose identifiers could become part of another path is none.
TEST(DicomJson, IdentifiersThatAreNoUidsAreCountedAndPassedOver) {
  for (const char* bad : {"\"\"", "\"1.2/../..\"", "\"1.2?x\"", "\"1 2\"", "\"1.2.\"", "\".1\"", "\"x\"", "7", "null",
                          "[\"1.2\"]", "\"1.2\",\"1.3\"", "\"1.2\\u0000\"",
                          "\"1.2345678901234567890123456789012345678901234567890123456789012345\""}) {
    const absl::StatusOr<FoundSeriesList> found = ParseFoundSeries(absl::StrCat("[", Match("\"1.2\"", bad), "]"));
    ASSERT_THAT(found, Succeeds()) << bad;
    EXPECT_EQ(found->series.size(), 0u) << bad;
    EXPECT_EQ(found->unusable, 1) << bad;
  }
  EXPECT_EQ(ParseFoundSeries("[1,null,[],\"x\",{}]")->unusable, 5);
}

TEST(DicomJson, FindsInstances) {
  const auto instance = [](const std::string& uid) {
    return absl::StrCat(R"({"00080018":{"vr":"UI","Value":[")", uid, R"("]}})");
  };
  const auto found =
      ParseFoundInstances(absl::StrCat("[", instance("1.2.4"), ",", instance("1.2.3"), ",", instance("1.2.4"), "]"));
  ASSERT_THAT(found, io::Succeeds());
  EXPECT_EQ(*found, (std::vector<std::string>{"1.2.3", "1.2.4"}));
  EXPECT_THAT(ParseFoundInstances("[]"), io::Succeeds());
  for (const std::string& wrong : {instance(".."), std::string("{}"), std::string("")}) {
    EXPECT_THAT(ParseFoundInstances(absl::StrCat("[", instance("1.2.3"), ",", wrong, "]")),
                io::Fails(absl::StatusCode::kDataLoss, "json"));
  }
}

TEST(DicomJson, ValuesOfOtherKindsCountAsAbsent) {
  for (const char* value : {"-3", "1e3", "2.5", "18446744073709551615", "\"x\"", "{}", "null", "true", "1,2"}) {
    const std::string more =
        absl::StrCat(R"(,"00201209":{"vr":"IS","Value":[)", value, R"(]},"00080060":{"Value":["Doe^Jane"]})");
    const auto found = ParseFoundSeries(absl::StrCat("[", Match("\"1.2\"", "\"1.3\"", more), "]"));
    ASSERT_THAT(found, Succeeds()) << value;
    ASSERT_EQ(found->series.size(), 1u) << value;
    EXPECT_EQ(found->series[0].instances, -1) << value;
    EXPECT_EQ(found->series[0].modality, "");
  }
}

TEST(DicomJson, BrokenTextsAreRefused) {
  for (const char* bad :
       {"", "[", "{}", "null", "7", "\"x\"", "[{]", "[1,]", "<html>", "[{\"a\":tru", "[\"\\ud800\"]x"}) {
    EXPECT_THAT(ParseFoundSeries(bad), Fails(StatusCode::kDataLoss, "json:")) << bad;
  }
  EXPECT_THAT(ParseStoredInstances("[]"), Fails(StatusCode::kDataLoss, "json:"));
  EXPECT_THAT(ParseStoredInstances("7"), Fails(StatusCode::kDataLoss, "json:"));
}

TEST(DicomJson, NestingAndNumbersOfValuesAreBounded) {
  const std::string deep(1 << 20, '[');
  EXPECT_THAT(ParseFoundSeries(deep), Fails(StatusCode::kResourceExhausted, "nested"));
  EXPECT_THAT(ParseFoundSeries(std::string(kMaxJsonDepth, '[') + std::string(kMaxJsonDepth, ']')), Succeeds());
  EXPECT_THAT(ParseFoundSeries("[\"" + std::string(1000, '[') + "\"]"), Succeeds());
  std::string many = "[0";
  for (int64_t i = 0; i < kMaxJsonValues; ++i) many += ",0";
  EXPECT_THAT(ParseFoundSeries(many + "]"), Fails(StatusCode::kResourceExhausted, "too many values"));
}

// Cut, flipped and repeated bytes: an answer is taken or refused, and only with these codes.
TEST(DicomJson, DamagedTextsAreTakenOrRefused) {
  const std::string good = absl::StrCat(
      "[", Match("\"1.2\"", "\"1.2.3\"", R"(,"00201209":{"vr":"IS","Value":[22]},"00100010":{"Value":["Doe^Jane"]})"),
      "]");
  std::random_device device;
  for (int round = 0; round < 5000; ++round) {
    const unsigned seed = device();
    std::mt19937 random(seed);
    std::string text = good.substr(0, random() % (good.size() + 1));
    for (unsigned i = random() % 4; i > 0 && !text.empty(); --i)
      text[random() % text.size()] = static_cast<char>(random());
    const auto found = ParseFoundSeries(text);
    const auto stored = ParseStoredInstances(text);
    for (const absl::Status& status : {found.status(), stored.status()}) {
      EXPECT_TRUE(status.ok() || status.code() == StatusCode::kDataLoss) << "seed " << seed << ": " << status;
      EXPECT_EQ(status.message().find("Doe"), absl::string_view::npos);
    }
  }
}

TEST(DicomJson, StoredAndFailedInstances) {
  const auto stored = ParseStoredInstances(R"({
    "00081199": {"vr": "SQ", "Value": [
      {"00081155": {"vr": "UI", "Value": ["1.2"]}},
      {"00081155": {"vr": "UI", "Value": ["1.3"]}, "00081196": {"vr": "US", "Value": [45056]}}]},
    "00081198": {"vr": "SQ", "Value": [
      {"00081197": {"vr": "US", "Value": [42752]}}, {"00081197": {"vr": "US", "Value": ["42752"]}},
      {"00081197": {"vr": "US", "Value": [290]}}]},
    "0008119A": {"vr": "SQ", "Value": [{}]}})");
  ASSERT_THAT(stored, Succeeds());
  EXPECT_EQ(stored->stored, 2);
  EXPECT_EQ(stored->with_warning, 1);
  EXPECT_EQ(stored->failed, (std::map<int64_t, int64_t>{{0, 1}, {290, 1}, {42752, 2}}));
  EXPECT_EQ(ParseStoredInstances("[{}]")->stored, 0);
}

}  // namespace
}  // namespace intrawarp::dicomweb
