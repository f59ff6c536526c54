// SPDX-License-Identifier: Apache-2.0
#include "io/dicomweb/archive.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/base/field_error.h"
#include "engine/base/status_macros.h"
#include "io/dicomweb/media_type.h"
#include "io/dicomweb/multipart.h"
#include "io/dicomweb/store_body.h"
#include "io/file/file.h"

namespace intrawarp::dicomweb {
namespace {

using absl::StatusCode;

constexpr char kDicom[] = "application/dicom";
constexpr char kDicomJson[] = "application/dicom+json";
constexpr int kWhole = 200;
constexpr int kNoContent = 204;
constexpr int kAccepted = 202;
constexpr int64_t kMaxJsonBytes = 16 << 20;
constexpr int64_t kPageSeries = 200;
constexpr int64_t kPageInstances = 1000;
constexpr int kMaxPages = 1000;

absl::Status NotDicom() {
  return FieldError(StatusCode::kUnimplemented, "content_type", "the archive's answer is not application/dicom");
}

absl::Status NotDicomJson() {
  return FieldError(StatusCode::kUnimplemented, "content_type", "the archive's answer is not application/dicom+json");
}

// Passes the parts of a body on as instances.
class InstanceParts final : public PartSink {
 public:
  explicit InstanceParts(InstanceSink& sink) : sink_(sink) {}

  absl::Status Begin(absl::string_view content_type) override {
    if (!content_type.empty()) {
      INTRAWARP_ASSIGN_OR_RETURN(const MediaType type, ParseMediaType(content_type));
      if (type.name != kDicom) return NotDicom();
    }
    return sink_.Begin();
  }
  absl::Status Append(absl::string_view bytes) override {
    bytes_ += static_cast<int64_t>(bytes.size());
    return sink_.Append(bytes);
  }
  absl::Status End() override {
    ++instances_;
    return sink_.End();
  }
  Retrieved retrieved() const { return {instances_, bytes_}; }

 private:
  InstanceSink& sink_;
  int64_t instances_ = 0;
  int64_t bytes_ = 0;
};

// The body of a retrieve: parts, or one instance alone, as some archives answer for a series of one.
class RetrieveBody {
 public:
  RetrieveBody(const RetrieveLimits& limits, InstanceSink& sink) : limits_(limits), parts_(sink) {}

  absl::Status Begin(const HttpReply& reply) {
    if (reply.status == kNoContent) return absl::NotFoundError("the archive has no instance of the series");
    if (reply.status != kWhole) {
      return absl::DataLossError(absl::StrCat("the archive answered HTTP ", reply.status, ": it sends a part only"));
    }
    INTRAWARP_ASSIGN_OR_RETURN(const MediaType type, ParseMediaType(reply.content_type));
    if (type.name == kDicom) return parts_.Begin(kDicom);
    const std::string part_type = absl::AsciiStrToLower(type.Parameter("type"));
    if (type.name != "multipart/related" || (!part_type.empty() && part_type != kDicom)) return NotDicom();
    MultipartLimits limits;
    limits.max_part_bytes = limits_.max_instance_bytes;
    limits.max_parts = limits_.max_instances;
    INTRAWARP_ASSIGN_OR_RETURN(MultipartReader reader,
                               MultipartReader::Create(type.Parameter("boundary"), limits, parts_));
    reader_.emplace(std::move(reader));
    return absl::OkStatus();
  }
  absl::Status Take(absl::string_view bytes) {
    if (reader_) return reader_->Take(bytes);
    if (parts_.retrieved().bytes + static_cast<int64_t>(bytes.size()) > limits_.max_instance_bytes) {
      return absl::ResourceExhaustedError("the archive's instance is larger than allowed");
    }
    return parts_.Append(bytes);
  }
  absl::Status Finish() { return reader_ ? reader_->Finish() : parts_.End(); }
  Retrieved retrieved() const { return parts_.retrieved(); }

 private:
  const RetrieveLimits limits_;
  InstanceParts parts_;
  std::optional<MultipartReader> reader_;
};

absl::StatusOr<std::string> QueryText(const SeriesQuery& query) {
  std::string text;
  for (const auto& [keyword, value] : query.keys) {
    const bool is_keyword =
        !keyword.empty() && std::all_of(keyword.begin(), keyword.end(), [](char c) { return absl::ascii_isalnum(c); });
    if (!is_keyword) {
      return FieldError(StatusCode::kInvalidArgument, "query", "a key must be a keyword of DICOM, as PatientID");
    }
    absl::StrAppend(&text, keyword, "=", EscapeUrl(value), "&");
  }
  std::vector<std::string> fields = {
      "00080020", "00080030",  // StudyDate, StudyTime
      "00081030", "0008103E",  // StudyDescription, SeriesDescription
      "00200011", "00201209",  // SeriesNumber, NumberOfSeriesRelatedInstances
  };
  // PatientName, PatientID, PatientBirthDate
  if (query.with_patient) fields.insert(fields.end(), {"00100010", "00100020", "00100030"});
  return absl::StrCat(text, "includefield=", absl::StrJoin(fields, "&includefield="));
}

// Table I.2-2 of PS3.18, as far as it helps a caller.
absl::StatusCode CodeOf(int64_t reason) {
  if (reason >= 0xa700 && reason <= 0xa7ff) return StatusCode::kResourceExhausted;
  if (reason == 0x0124) return StatusCode::kPermissionDenied;
  if (reason == 0x0122) return StatusCode::kUnimplemented;
  return StatusCode::kFailedPrecondition;
}

std::string DescribeReason(int64_t reason, int64_t count) {
  if (reason == 0) return absl::StrCat(count, " for a reason that it does not say");
  const char* meaning = "";
  if (reason >= 0xa700 && reason <= 0xa7ff) meaning = " (out of resources)";
  if (reason >= 0xa900 && reason <= 0xa9ff) meaning = " (data set does not match its SOP class)";
  if (reason >= 0xc000 && reason <= 0xcfff) meaning = " (cannot understand)";
  if (reason == 0xc122) meaning = " (transfer syntax not supported)";
  if (reason == 0x0110) meaning = " (processing failure)";
  if (reason == 0x0111) meaning = " (duplicate instance)";
  if (reason == 0x0122) meaning = " (SOP class not supported)";
  if (reason == 0x0124) meaning = " (not authorized)";
  return absl::StrFormat("%d for 0x%04X%s", count, reason, meaning);
}

// The files of one request, from the front of `files`.
std::vector<StoreBody::File> NextRequest(const std::vector<StoreBody::File>& files, size_t begin,
                                         const StoreLimits& limits) {
  std::vector<StoreBody::File> request;
  int64_t bytes = 0;
  for (size_t i = begin; i < files.size(); ++i) {
    bytes += files[i].bytes;
    const bool is_full = bytes > limits.request_bytes || static_cast<int64_t>(request.size()) >= limits.request_files;
    if (!request.empty() && is_full) break;
    request.push_back(files[i]);
  }
  return request;
}

absl::StatusOr<std::vector<StoreBody::File>> SizesOf(const std::vector<std::string>& paths) {
  std::vector<StoreBody::File> files;
  for (const std::string& path : paths) {
    INTRAWARP_ASSIGN_OR_RETURN(const io::RegularFile file, io::OpenRegularFile(path));
    close(file.descriptor);
    files.push_back({path, file.bytes});
  }
  return files;
}

void Add(const StoredInstances& more, StoredInstances& sum) {
  sum.stored += more.stored;
  sum.with_warning += more.with_warning;
  for (const auto& [reason, count] : more.failed) sum.failed[reason] += count;
}

// Whether an answer that holds no DICOM JSON can be that of an archive: it is XML, or nothing.
bool MayBeStored(const absl::StatusOr<MediaType>& type, const HttpReply& reply, const std::string& body) {
  if (!type.ok()) return reply.content_type.empty() && body.empty();
  return type->name == "application/dicom+xml" || type->name == "application/xml" || type->name == "text/xml";
}

// Counts what an answer says about `sent` instances. An archive that answers 200 with XML or nothing says that all are
// stored. Another page with 200, as one to log in, is not an answer of an archive.
absl::StatusOr<StoredInstances> ReadStoreReply(const HttpReply& reply, const std::string& body, int64_t sent) {
  absl::StatusOr<MediaType> type = ParseMediaType(reply.content_type);
  const bool is_json = type.ok() && (type->name == kDicomJson || type->name == "application/json");
  if (is_json) {
    INTRAWARP_ASSIGN_OR_RETURN(StoredInstances stored, ParseStoredInstances(body));
    int64_t said = stored.stored;
    for (const auto& [reason, count] : stored.failed) said += count;
    if (stored.stored > sent || said > sent) {
      return absl::DataLossError("the archive speaks of more instances than it was sent");
    }
    // Instances that it does not speak of count as failed.
    if (said < sent) stored.failed[0] += sent - said;
    return stored;
  }
  StoredInstances stored;
  const bool is_partial = reply.status == kAccepted || reply.status >= 300;
  if (is_partial) {
    stored.failed[0] = sent;
  } else if (MayBeStored(type, reply, body)) {
    stored.stored = sent;
  } else {
    return NotDicomJson();
  }
  return stored;
}

absl::StatusOr<StoredInstances> StoreOnce(HttpClient& http, std::vector<StoreBody::File> files) {
  const int64_t sent = static_cast<int64_t>(files.size());
  StoreBody body(std::move(files));
  std::string answer;
  HttpRequest request;
  request.target = "/studies";
  request.accept = kDicomJson;
  request.content_type = body.ContentType();
  request.given_bytes = body.bytes();
  request.give = [&](char* to, size_t size) { return body.Read(to, size); };
  request.max_body_bytes = kMaxJsonBytes;
  request.take = [&](absl::string_view bytes) {
    answer.append(bytes.data(), bytes.size());
    return absl::OkStatus();
  };
  INTRAWARP_ASSIGN_OR_RETURN(const HttpReply reply, http.Run(request));
  return ReadStoreReply(reply, answer, sent);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Archive>> Archive::Create(HttpOptions options) {
  INTRAWARP_ASSIGN_OR_RETURN(std::unique_ptr<HttpClient> http, HttpClient::Create(std::move(options)));
  return std::unique_ptr<Archive>(new Archive(std::move(http)));
}

absl::StatusOr<std::optional<std::string>> Archive::Search(const std::string& target) {
  std::string body;
  HttpRequest request;
  request.target = target;
  request.accept = kDicomJson;
  request.max_body_bytes = kMaxJsonBytes;
  request.begin = [](const HttpReply& reply) -> absl::Status {
    if (reply.status == kNoContent) return absl::OkStatus();
    INTRAWARP_ASSIGN_OR_RETURN(const MediaType type, ParseMediaType(reply.content_type));
    if (type.name == kDicomJson || type.name == "application/json") return absl::OkStatus();
    return NotDicomJson();
  };
  request.take = [&](absl::string_view bytes) {
    body.append(bytes.data(), bytes.size());
    return absl::OkStatus();
  };
  INTRAWARP_ASSIGN_OR_RETURN(const HttpReply reply, http_->Run(request));
  if (reply.status == kNoContent) return std::nullopt;
  return body;
}

absl::StatusOr<FoundSeriesList> Archive::FindPage(const std::string& query, int64_t limit, int64_t offset) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::optional<std::string> body,
                             Search(absl::StrCat("/series?", query, "&limit=", limit, "&offset=", offset)));
  if (!body) return FoundSeriesList();
  return ParseFoundSeries(*body);
}

// As FindSeries, until a page brings nothing new.
absl::StatusOr<std::vector<std::string>> Archive::ListInstances(const FoundSeries& series, int64_t max_instances) {
  const std::string target = absl::StrCat("/studies/", series.study_uid, "/series/", series.series_uid,
                                          "/instances?includefield=00080018&limit=", kPageInstances, "&offset=");
  std::set<std::string> uids;
  int64_t offset = 0;
  for (int page = 0; page < kMaxPages; ++page) {
    INTRAWARP_ASSIGN_OR_RETURN(const std::optional<std::string> body, Search(absl::StrCat(target, offset)));
    if (!body) break;
    INTRAWARP_ASSIGN_OR_RETURN(const std::vector<std::string> found, ParseFoundInstances(*body));
    const size_t before = uids.size();
    uids.insert(found.begin(), found.end());
    offset += static_cast<int64_t>(found.size());
    if (static_cast<int64_t>(uids.size()) > max_instances) {
      return absl::ResourceExhaustedError("the archive lists too many instances");
    }
    if (uids.size() == before) break;
  }
  return std::vector<std::string>(uids.begin(), uids.end());
}

// Archives answer fewer matches than asked for, or all of them whatever the limit and the offset: the search goes on
// until a page brings nothing new.
absl::StatusOr<SeriesFound> Archive::FindSeries(const SeriesQuery& query) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::string text, QueryText(query));
  SeriesFound found;
  std::set<std::pair<std::string, std::string>> known;
  int64_t offset = 0;
  for (int page = 0; page < kMaxPages; ++page) {
    const int64_t wanted = query.max_series + 1 - static_cast<int64_t>(found.series.size());
    INTRAWARP_ASSIGN_OR_RETURN(FoundSeriesList list, FindPage(text, std::min(kPageSeries, wanted), offset));
    const size_t before = found.series.size();
    offset += static_cast<int64_t>(list.series.size()) + list.unusable;
    for (FoundSeries& series : list.series) {
      if (!known.emplace(series.study_uid, series.series_uid).second) continue;
      found.truncated = static_cast<int64_t>(found.series.size()) >= query.max_series;
      if (found.truncated) return found;
      if (!query.with_patient) series.patient_id = series.patient_name = series.patient_birth_date = "";
      found.series.push_back(std::move(series));
    }
    if (found.series.size() == before) return found;
  }
  return absl::ResourceExhaustedError("the archive answers in too many pages");
}

absl::StatusOr<Retrieved> Archive::Retrieve(const FoundSeries& series, const RetrieveLimits& limits,
                                            InstanceSink& sink) {
  if (!IsUid(series.study_uid)) return FieldError(StatusCode::kInvalidArgument, "study_uid", "is no UID");
  if (!IsUid(series.series_uid)) return FieldError(StatusCode::kInvalidArgument, "series_uid", "is no UID");
  RetrieveBody body(limits, sink);
  HttpRequest request;
  request.target = absl::StrCat("/studies/", series.study_uid, "/series/", series.series_uid);
  request.accept = "multipart/related; type=\"application/dicom\"; transfer-syntax=*";
  request.max_body_bytes = limits.max_bytes;
  request.begin = [&](const HttpReply& reply) { return body.Begin(reply); };
  request.take = [&](absl::string_view bytes) { return body.Take(bytes); };
  INTRAWARP_RETURN_IF_ERROR(http_->Run(request).status());
  INTRAWARP_RETURN_IF_ERROR(body.Finish());
  const Retrieved retrieved = body.retrieved();
  if (retrieved.instances == 0) return absl::NotFoundError("the archive has no instance of the series");
  if (retrieved.instances >= series.instances) return retrieved;
  return absl::DataLossError(absl::StrCat("the archive sent ", retrieved.instances, " of the ", series.instances,
                                          " instances that it has of the series"));
}

absl::Status Archive::Store(const std::vector<std::string>& paths, const StoreLimits& limits, StoredInstances& stored) {
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<StoreBody::File> files, SizesOf(paths));
  for (size_t next = 0; next < files.size();) {
    std::vector<StoreBody::File> request = NextRequest(files, next, limits);
    next += request.size();
    INTRAWARP_ASSIGN_OR_RETURN(const StoredInstances more, StoreOnce(*http_, std::move(request)));
    Add(more, stored);
  }
  return absl::OkStatus();
}

absl::Status StoreStatus(const StoredInstances& stored, int64_t sent) {
  if (stored.failed.empty()) return absl::OkStatus();
  std::vector<std::string> reasons;
  const auto worst = std::max_element(stored.failed.begin(), stored.failed.end(),
                                      [](const auto& a, const auto& b) { return a.second < b.second; });
  for (const auto& [reason, count] : stored.failed) reasons.push_back(DescribeReason(reason, count));
  return absl::Status(CodeOf(worst->first), absl::StrCat("the archive did not store ", sent - stored.stored, " of ",
                                                         sent, " instances: ", absl::StrJoin(reasons, ", ")));
}

}  // namespace intrawarp::dicomweb
