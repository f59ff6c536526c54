// SPDX-License-Identifier: Apache-2.0
// time_archive URL SOURCE FOLDER: sends the DICOM files of SOURCE to a DICOMweb archive on this machine, fetches their
// series into FOLDER, and prints instances and megabytes a second. The floor, a plain curl of the same requests, is
// printed by the shell (docs/use/dicom.md).
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "client/cli/dicom_archive.h"
#include "engine/base/status_macros.h"
#include "io/dicomweb/archive.h"

namespace intrawarp {
namespace {

using Clock = std::chrono::steady_clock;

void Print(const char* what, int64_t instances, int64_t bytes, Clock::time_point begin) {
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  std::printf("%s: %d instances, %.1f MB, %.2f s: %.0f instances/s, %.0f MB/s\n", what, static_cast<int>(instances),
              static_cast<double>(bytes) / 1e6, seconds, static_cast<double>(instances) / seconds,
              static_cast<double>(bytes) / 1e6 / seconds);
}

absl::Status Run(const std::string& url, const std::string& source, const std::string& folder) {
  dicomweb::HttpOptions http;
  http.base_url = url;
  INTRAWARP_ASSIGN_OR_RETURN(const cli::DicomFiles found, cli::FindDicomFiles(source));
  int64_t bytes = 0;
  for (const cli::DicomFile& file : found.files) bytes += static_cast<int64_t>(std::filesystem::file_size(file.path));
  const auto count = static_cast<int64_t>(found.files.size());
  auto begin = Clock::now();
  dicomweb::StoredInstances stored;
  INTRAWARP_RETURN_IF_ERROR(cli::SendByStow(http, found.files, stored));
  INTRAWARP_RETURN_IF_ERROR(dicomweb::StoreStatus(stored, count));
  Print("STOW-RS", count, bytes, begin);
  INTRAWARP_ASSIGN_OR_RETURN(const auto archive, dicomweb::Archive::Create(http));
  INTRAWARP_ASSIGN_OR_RETURN(const dicomweb::SeriesFound series, archive->FindSeries({}));
  if (series.series.size() != 1) return absl::FailedPreconditionError("the archive must hold one series");
  begin = Clock::now();
  const auto& [study, name] = std::pair(series.series[0].study_uid, series.series[0].series_uid);
  INTRAWARP_ASSIGN_OR_RETURN(const int64_t files, cli::FetchSeries(http, study, name, folder));
  Print("QIDO-RS and WADO-RS", files, bytes, begin);
  return absl::OkStatus();
}

}  // namespace
}  // namespace intrawarp

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("time_archive URL SOURCE FOLDER\n", stderr);
    return 2;
  }
  const absl::Status status = intrawarp::Run(argv[1], argv[2], argv[3]);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
