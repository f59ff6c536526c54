// SPDX-License-Identifier: Apache-2.0
// An archive that speaks DICOMweb (PS3.18): search for series (QIDO-RS), retrieve one (WADO-RS), store files (STOW-RS).
//
// Instances go to a sink as they arrive, and files are read as they are sent: memory does not grow with a series.
// Errors are those of HttpClient (http.h), MultipartReader (multipart.h) and the JSON answers (dicom_json.h), and what
// the functions say. Messages hold neither UIDs nor anything that the archive wrote.
//
// Thread safety: thread-compatible.
#ifndef INTRAWARP_IO_DICOMWEB_ARCHIVE_H_
#define INTRAWARP_IO_DICOMWEB_ARCHIVE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/dicomweb/dicom_json.h"
#include "io/dicomweb/http.h"

namespace intrawarp::dicomweb {

struct SeriesQuery {
  // By keyword ("PatientID", "StudyInstanceUID", "Modality", ...), with DICOM's wildcards (PS3.4, C.2.2.2) where the
  // archive takes them. Empty: all series.
  std::map<std::string, std::string> keys = {};
  int64_t max_series = 1000;
  // Whether the matches name their patient.
  bool with_patient = false;
};

struct SeriesFound {
  std::vector<FoundSeries> series;
  // There are more than the query's max_series.
  bool truncated = false;
};

// Takes the instances of a series, one after the other.
class InstanceSink {
 public:
  virtual ~InstanceSink() = default;
  virtual absl::Status Begin() = 0;
  virtual absl::Status Append(absl::string_view bytes) = 0;
  // The instance is whole, as far as the transport tells.
  virtual absl::Status End() = 0;
};

struct RetrieveLimits {
  int64_t max_instance_bytes = int64_t{4} << 30;
  int64_t max_bytes = int64_t{64} << 30;
  int64_t max_instances = 100000;
};

struct Retrieved {
  int64_t instances = 0;
  int64_t bytes = 0;
};

struct StoreLimits {
  // Files are sent in requests of so many bytes, and so many files; a larger file has a request of its own.
  int64_t request_bytes = int64_t{64} << 20;
  int64_t request_files = 256;
};

class Archive {
 public:
  // Connects nowhere. INVALID_ARGUMENT as HttpClient::Create.
  static absl::StatusOr<std::unique_ptr<Archive>> Create(HttpOptions options);

  // The series that match, each once. The archive may answer in pages of any size. INVALID_ARGUMENT "query: ..." for a
  // keyword of other than letters and digits.
  absl::StatusOr<SeriesFound> FindSeries(const SeriesQuery& query);

  // The SOP instance UIDs of a series, each once (QIDO-RS). Archives need not have this search. RESOURCE_EXHAUSTED
  // above `max_instances`.
  absl::StatusOr<std::vector<std::string>> ListInstances(const FoundSeries& series, int64_t max_instances);

  // All instances of a series, in whatever transfer syntax the archive holds them. NOT_FOUND where there are none,
  // DATA_LOSS where fewer come than `series.instances` says (if it does) or where the archive says that it sends a part
  // (HTTP 202 or 206, or any other 2xx than 200), UNIMPLEMENTED for an answer that is not DICOM. An archive may send an
  // instance twice: who counts them looks at their UIDs. After an error the sink may hold whole instances and a part of
  // one.
  absl::StatusOr<Retrieved> Retrieve(const FoundSeries& series, const RetrieveLimits& limits, InstanceSink& sink);

  // Stores DICOM files (PS3.10). The sum over all requests; a request that fails as a whole ends it, so that `stored`
  // tells how far it got. UNIMPLEMENTED for an answer that no archive gives. An error about one of the files begins
  // with "file: ".
  absl::Status Store(const std::vector<std::string>& paths, const StoreLimits& limits, StoredInstances& stored);

 private:
  explicit Archive(std::unique_ptr<HttpClient> http) : http_(std::move(http)) {}
  absl::StatusOr<FoundSeriesList> FindPage(const std::string& query, int64_t limit, int64_t offset);
  // The body of a search's answer; nullopt: nothing was found.
  absl::StatusOr<std::optional<std::string>> Search(const std::string& target);

  const std::unique_ptr<HttpClient> http_;
};

// OK when `stored` has `sent` instances and no failure; otherwise how many failed and for which reasons.
absl::Status StoreStatus(const StoredInstances& stored, int64_t sent);

}  // namespace intrawarp::dicomweb

#endif  // INTRAWARP_IO_DICOMWEB_ARCHIVE_H_
