// SPDX-License-Identifier: Apache-2.0
// SeriesIntake: the series that an import waits for. A SeriesSource puts its instances here as they come; they lie in
// the spool, within its bounds and those of the import's peer, apart from what peers send by themselves.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_PACS_SERIES_INTAKE_H_
#define INTRAWARP_SERVER_PACS_SERIES_INTAKE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "io/dicom/dicom.h"
#include "server/pacs/instance_spool.h"
#include "server/pacs/pacs_metrics.h"
#include "server/pacs/peers.h"
#include "server/pacs/series_source.h"

namespace intrawarp::server {

struct IntakeProgress {
  int64_t total = -1;  // instances; -1: unknown
  int64_t received = 0;
  int64_t bytes = 0;
};

class SeriesIntake : public std::enable_shared_from_this<SeriesIntake> {
 public:
  // `limits` says what the series may take of the spool, and its name stands for the archive in logs. `reading`: memory
  // to read an instance; empty: there is enough. The references outlive the intake. RESOURCE_EXHAUSTED, UNAVAILABLE as
  // of InstanceSpool.
  static absl::StatusOr<std::shared_ptr<SeriesIntake>> Open(InstanceSpool& spool, const PacsMetrics& metrics,
                                                            const DicomPeer& limits, SeriesName name,
                                                            io::DicomRoomFn reading = {});

  const SeriesName& name() const { return name_; }
  // The hash of the series' UID, as io::DicomProvenance has it.
  const std::string& hash() const { return hash_; }

  // A file for an instance that begins to come. RESOURCE_EXHAUSTED, UNAVAILABLE.
  absl::StatusOr<std::unique_ptr<SpooledFile>> NewFile();
  // Takes a whole file (PS3.10) of the instance `uid`, and counts it in the metrics. INVALID_ARGUMENT when the reader
  // can make nothing of it, or when it is of another series, study, patient or instance; ALREADY_EXISTS when the
  // instance has come with other content, which contradiction() then tells; RESOURCE_EXHAUSTED when there is no memory
  // to read it; then, and after other errors, the intake is not whole.
  absl::Status Add(const std::string& uid, std::unique_ptr<SpooledFile> file);
  bool Has(const std::string& uid) const;
  // DATA_LOSS once an instance has come twice, with different content: nobody knows which one is right.
  absl::Status contradiction() const;

  void set_total(int64_t instances);
  IntakeProgress progress() const;
  // Called after each change of the progress, on the thread that makes it. Before the first one.
  void set_on_progress(std::function<void(const IntakeProgress&)> on_progress) {
    on_progress_ = std::move(on_progress);
  }

  // Nobody waits for the series any more. Sources look several times a second.
  void Cancel() { cancelled_ = true; }
  bool cancelled() const { return cancelled_; }

  // The received instances. Once; nothing can be added after it.
  std::unique_ptr<GatheredSeries> Take();

 private:
  SeriesIntake(InstanceSpool& spool, const PacsMetrics& metrics, const DicomPeer& limits, SeriesName name,
               io::DicomRoomFn reading);
  absl::Status Keep(const std::string& uid, std::unique_ptr<SpooledFile> file);
  void Report() const;

  InstanceSpool& spool_;
  const PacsMetrics& metrics_;
  const DicomPeer& limits_;
  const SeriesName name_;
  const std::string hash_;
  const io::DicomRoomFn reading_;
  std::function<void(const IntakeProgress&)> on_progress_;
  std::atomic<bool> cancelled_{false};
  mutable std::mutex mutex_;
  IntakeProgress progress_;
  std::string group_;  // of the first instance
  bool is_contradicted_ = false;
  std::unique_ptr<GatheredSeries> series_;  // null once it was taken
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PACS_SERIES_INTAKE_H_
