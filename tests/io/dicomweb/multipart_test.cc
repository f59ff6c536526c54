// SPDX-License-Identifier: Apache-2.0
#include "io/dicomweb/multipart.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/dicomweb/media_type.h"
#include "tests/io/io_test.h"

namespace intrawarp::dicomweb {
namespace {

using absl::StatusCode;
using io::Fails;
using io::Succeeds;

struct Part {
  std::string type;
  std::string bytes;
  bool is_whole = false;
};

class Collector final : public PartSink {
 public:
  absl::Status Begin(absl::string_view content_type) override {
    EXPECT_TRUE(parts.empty() || parts.back().is_whole);
    parts.push_back({std::string(content_type), "", false});
    return absl::OkStatus();
  }
  absl::Status Append(absl::string_view bytes) override {
    if (fails) return absl::ResourceExhaustedError("full");
    absl::StrAppend(&parts.back().bytes, bytes);
    return absl::OkStatus();
  }
  absl::Status End() override {
    parts.back().is_whole = true;
    return absl::OkStatus();
  }
  std::vector<Part> parts;
  bool fails = false;
};

absl::Status ReadIn(const std::string& body, const std::string& boundary, Collector& collector, size_t piece,
                    const MultipartLimits& limits = {}) {
  absl::StatusOr<MultipartReader> reader = MultipartReader::Create(boundary, limits, collector);
  if (!reader.ok()) return reader.status();
  for (size_t at = 0; at < body.size(); at += piece) {
    // Most errors come here, and stay.
    if (const absl::Status status = reader->Take(body.substr(at, piece)); !status.ok()) {
      EXPECT_EQ(reader->Take("x"), status);
      EXPECT_EQ(reader->Finish(), status);
      return status;
    }
  }
  return reader->Finish();
}

std::string Encode(const std::vector<std::string>& parts, const std::string& boundary) {
  std::string body;
  for (const std::string& part : parts) {
    absl::StrAppend(&body, "--", boundary, "\r\nContent-Type: application/dicom\r\n\r\n", part, "\r\n");
  }
  return absl::StrCat(body, "--", boundary, "--\r\n");
}

// Bytes in which beginnings of a delimiter are frequent.
std::string NastyBytes(std::mt19937& random, size_t size, const std::string& boundary) {
  const std::string delimiter = "\r\n--" + boundary;
  std::string bytes;
  while (bytes.size() < size) {
    if (random() % 4 == 0) {
      bytes += delimiter.substr(0, random() % delimiter.size());
    } else {
      bytes += static_cast<char>(random());
    }
  }
  return bytes.substr(0, size);
}

TEST(Multipart, PartsComeOutAsTheyWereInPiecesOfAnySize) {
  std::random_device device;
  for (int round = 0; round < 200; ++round) {
    const unsigned seed = device();
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    const std::string boundary = std::string(1 + random() % 70, static_cast<char>('a' + random() % 26));
    std::vector<std::string> parts(1 + random() % 4);
    for (std::string& part : parts) {
      // A body that holds the delimiter would be another body.
      do {
        part = NastyBytes(random, random() % 3000, boundary);
      } while (("\r\n" + part + "\r\n").find("\r\n--" + boundary) != std::string::npos);
    }
    const std::string body = Encode(parts, boundary);
    absl::StatusOr<MultipartReader> reader = absl::UnknownError("");
    Collector collector;
    reader = MultipartReader::Create(boundary, {}, collector);
    ASSERT_THAT(reader, Succeeds());
    const size_t longest = 1 + random() % 200;
    for (size_t at = 0; at < body.size();) {
      const size_t piece = std::min(body.size() - at, size_t{1} + random() % longest);
      ASSERT_THAT(reader->Take(body.substr(at, piece)), Succeeds());
      at += piece;
    }
    ASSERT_THAT(reader->Finish(), Succeeds());
    ASSERT_EQ(reader->parts(), static_cast<int64_t>(parts.size()));
    ASSERT_EQ(collector.parts.size(), parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      EXPECT_TRUE(collector.parts[i].is_whole);
      EXPECT_EQ(collector.parts[i].type, "application/dicom");
      EXPECT_TRUE(collector.parts[i].bytes == parts[i]);
    }
  }
}

// However a body is cut short, it is not a body, and no part that is not whole counts as whole.
TEST(Multipart, EveryTruncationIsNoticed) {
  const std::vector<std::string> parts = {"first\r\n--", "", "third"};
  const std::string body = Encode(parts, "bound");
  const std::string closed = body.substr(0, body.size() - 2);  // the last CRLF is an epilogue
  for (size_t size = 0; size < closed.size(); ++size) {
    for (const size_t piece : {size_t{1}, size_t{7}, body.size()}) {
      Collector collector;
      EXPECT_THAT(ReadIn(closed.substr(0, size), "bound", collector, piece),
                  Fails(StatusCode::kDataLoss, "multipart:"));
      for (size_t i = 0; i < collector.parts.size(); ++i) {
        if (collector.parts[i].is_whole) {
          EXPECT_EQ(collector.parts[i].bytes, parts[i]);
        }
      }
    }
  }
  Collector collector;
  EXPECT_THAT(ReadIn(closed, "bound", collector, 3), Succeeds());
}

TEST(Multipart, PreambleEpilogueBlanksAndLongHeadersAreTaken) {
  const std::string body =
      "a preamble\r\nof lines\r\n--b \t\r\nContent-Location: x\r\n folded\r\ncontent-TYPE:  application/dicom; "
      "transfer-syntax=1.2\r\nContent-Length: 5\r\n\r\nabcde\r\n--b\r\n\r\nno header\r\n--b--\r\nan epilogue";
  for (size_t piece = 1; piece < 40; ++piece) {
    Collector collector;
    ASSERT_THAT(ReadIn(body, "b", collector, piece), Succeeds()) << piece;
    ASSERT_EQ(collector.parts.size(), 2u);
    EXPECT_EQ(collector.parts[0].type, "application/dicom; transfer-syntax=1.2");
    EXPECT_EQ(collector.parts[0].bytes, "abcde");
    EXPECT_EQ(collector.parts[1].type, "");
    EXPECT_EQ(collector.parts[1].bytes, "no header");
  }
}

TEST(Multipart, HostileBodiesAreRefused) {
  const std::string head = "--b\r\nContent-Type: application/dicom\r\n";
  struct Case {
    const char* what;
    std::string body;
    StatusCode code;
  };
  const std::vector<Case> cases = {
      {"nothing", "", StatusCode::kDataLoss},
      {"only a close", "--b--", StatusCode::kOk},
      {"a delimiter that goes on", head + "\r\nx\r\n--bother\r\n\r\ny\r\n--b--", StatusCode::kDataLoss},
      {"a delimiter that ends badly", head + "\r\nx\r\n--b-x", StatusCode::kDataLoss},
      {"endless blanks", "--b" + std::string(5000, ' '), StatusCode::kDataLoss},
      {"a length that is too small", head + "Content-Length: 2\r\n\r\nabc\r\n--b--", StatusCode::kDataLoss},
      {"a length that is too large", head + "Content-Length: 4\r\n\r\nabc\r\n--b--", StatusCode::kDataLoss},
      {"a negative length", head + "Content-Length: -1\r\n\r\nabc\r\n--b--", StatusCode::kDataLoss},
      {"a length beyond all numbers", head + "Content-Length: 99999999999999999999\r\n\r\n", StatusCode::kDataLoss},
      {"an announced giant", head + "Content-Length: 9000000000000\r\n\r\n", StatusCode::kResourceExhausted},
      {"base64", head + "Content-Transfer-Encoding: base64\r\n\r\nAA==\r\n--b--", StatusCode::kUnimplemented},
      {"a part without its blank line", "--b\r\nabc\r\n--b--\r\n\r\n", StatusCode::kDataLoss},
      {"an endless header", head + std::string(20000, 'x'), StatusCode::kResourceExhausted},
      {"an endless preamble", std::string(100000, 'x'), StatusCode::kResourceExhausted},
      {"an endless epilogue", "--b--" + std::string(100000, 'x'), StatusCode::kResourceExhausted},
  };
  for (const Case& c : cases) {
    for (const size_t piece : {size_t{1}, size_t{1000}, size_t{1} << 20}) {
      Collector collector;
      EXPECT_EQ(ReadIn(c.body, "b", collector, piece).code(), c.code) << c.what << " in pieces of " << piece;
    }
  }
}

TEST(Multipart, LimitsAreThoseOfTheCaller) {
  const std::string body = Encode({std::string(100, 'x'), "y", "z"}, "b");
  MultipartLimits limits;
  limits.max_part_bytes = 100;
  limits.max_parts = 3;
  Collector collector;
  EXPECT_THAT(ReadIn(body, "b", collector, 9, limits), Succeeds());
  limits.max_part_bytes = 99;
  EXPECT_THAT(ReadIn(body, "b", collector = {}, 9, limits), Fails(StatusCode::kResourceExhausted, "too large"));
  limits = {.max_parts = 2};
  EXPECT_THAT(ReadIn(body, "b", collector = {}, 9, limits), Fails(StatusCode::kResourceExhausted, "too many parts"));
  EXPECT_EQ(collector.parts.size(), 2u);
}

TEST(Multipart, TheSinksErrorEndsIt) {
  Collector collector;
  collector.fails = true;
  EXPECT_THAT(ReadIn(Encode({"abc"}, "b"), "b", collector, 4), Fails(StatusCode::kResourceExhausted, "full"));
}

TEST(Multipart, BoundariesHaveOneToSeventyPrintableCharacters) {
  Collector collector;
  for (const std::string& bad : {std::string(), std::string(71, 'b'), std::string("a\r\nb"), std::string("b ")}) {
    EXPECT_THAT(MultipartReader::Create(bad, {}, collector), Fails(StatusCode::kInvalidArgument, "boundary"));
  }
  EXPECT_THAT(MultipartReader::Create(std::string(70, 'b'), {}, collector), Succeeds());
}

TEST(MediaType, NamesAndParameters) {
  const absl::StatusOr<MediaType> type =
      ParseMediaType(" Multipart/Related ; TYPE=\"application/dicom\";boundary=\"a \\\"b\\\" c\" ; start=x/y;");
  ASSERT_THAT(type, Succeeds());
  EXPECT_EQ(type->name, "multipart/related");
  EXPECT_EQ(type->Parameter("type"), "application/dicom");
  EXPECT_EQ(type->Parameter("boundary"), "a \"b\" c");
  EXPECT_EQ(type->Parameter("start"), "x/y");
  EXPECT_EQ(type->Parameter("none"), "");
  const absl::StatusOr<MediaType> plain = ParseMediaType("application/dicom");
  ASSERT_THAT(plain, Succeeds());
  EXPECT_EQ(plain->name, "application/dicom");
}

TEST(MediaType, WhatIsNoneIsRefused) {
  for (const std::string& bad :
       {std::string(), std::string("text"), std::string("text/"), std::string("/x"), std::string("a/b c"),
        std::string("a/b; x"), std::string("a/b; x="), std::string("a/b; x=\"y"), std::string("a/b; x=1; X=2"),
        std::string("a/b; x=\"\r\n\""), std::string("a/b\0", 4), "a/b; x=" + std::string(5000, 'x')}) {
    EXPECT_THAT(ParseMediaType(bad), Fails(StatusCode::kInvalidArgument, "content_type:")) << bad;
  }
}

}  // namespace
}  // namespace intrawarp::dicomweb
