// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/pacs_metrics.h"

namespace intrawarp::server {
namespace {

constexpr const char* kAssociationOutcomes[] = {"released", "broken", "refused", "timeout", "protocol"};
constexpr const char* kInstanceOutcomes[] = {"stored", "no_room", "unreadable", "refused"};
constexpr const char* kVolumeOutcomes[] = {"resident", "refused", "failed", "incomplete", "deferred"};
constexpr const char* kRequestOutcomes[] = {"opened", "failed"};
constexpr const char* kWebRequests[] = {"search", "retrieve"};
constexpr const char* kWebOutcomes[] = {"done",    "not_found", "refused",   "unavailable",
                                        "timeout", "unusable",  "too_large", "cancelled"};
constexpr const char* kImportOutcomes[] = {"done", "failed", "cancelled"};
constexpr double kDicomBuckets[] = {0.01, 0.03, 0.1, 0.3, 1, 2, 5, 10, 30, 60, 120, 300, 600};

}  // namespace

PacsMetrics::PacsMetrics(Registry& registry)
    : associations_(registry.Counters("intrawarp_dicom_associations_total", "DICOM associations, by how they ended.",
                                      {"outcome"}),
                    kAssociationOutcomes),
      instances_(registry.Counters("intrawarp_dicom_instances_total",
                                   "DICOM instances received, by what became of them.", {"outcome"}),
                 kInstanceOutcomes),
      received_bytes_(
          registry.NewCounter("intrawarp_dicom_received_bytes_total", "Bytes of DICOM instances received.")),
      volumes_(registry.Counters("intrawarp_dicom_volumes_total",
                                 "Volumes of DICOM series received, by what became of them.", {"outcome"}),
               kVolumeOutcomes),
      series_seconds_(registry.NewHistogram("intrawarp_dicom_series_seconds",
                                            "From a DICOM series' being complete to its volumes' being resident.",
                                            kDicomBuckets)),
      requests_(registry.Counters("intrawarp_dicom_requests_total",
                                  "DICOM associations that archives were asked for, by the outcome.", {"outcome"}),
                kRequestOutcomes),
      imports_(registry.Counters("intrawarp_dicom_imports_total", "Imports of series from archives, by how they ended.",
                                 {"outcome"}),
               kImportOutcomes),
      import_seconds_(registry.NewHistogram("intrawarp_dicom_import_seconds",
                                            "From an import's first association to its volumes' being resident.",
                                            kDicomBuckets)),
      imports_running_(registry.NewGauge("intrawarp_dicom_imports_running", "Imports of series that are under way.")),
      imports_waiting_(
          registry.NewGauge("intrawarp_dicom_imports_waiting", "Imports of series that wait for their turn.")),
      open_associations_(registry.NewGauge("intrawarp_dicom_associations", "Open DICOM associations.")),
      max_associations_(
          registry.NewGauge("intrawarp_dicom_associations_capacity", "DICOM associations that may be open.")),
      spool_bytes_(registry.NewGauge("intrawarp_dicom_spool_used_bytes", "DICOM instances that are not volumes yet.")),
      max_spool_bytes_(
          registry.NewGauge("intrawarp_dicom_spool_capacity_bytes", "Bytes that the DICOM spool may hold.")),
      spool_instances_(
          registry.NewGauge("intrawarp_dicom_spool_instances", "DICOM instances that are not volumes yet.")),
      made_instances_(registry.NewGauge("intrawarp_dicom_spool_made_instances",
                                        "DICOM instances of volumes, which late images may complete.")),
      unmade_instances_(registry.NewGauge("intrawarp_dicom_spool_unmade_instances",
                                          "DICOM instances of which no volume could be made.")) {
  const CounterFamily web = registry.Counters(
      "intrawarp_dicomweb_requests_total",
      "DICOMweb searches and retrievals that archives were asked for, by the outcome.", {"request", "outcome"});
  for (const char* request : kWebRequests) {
    web_requests_.push_back(EnumCounters<WebOutcome>(web, kWebOutcomes, {request}));
  }
}

void PacsMetrics::CountInstance(InstanceOutcome outcome, int64_t bytes) const {
  instances_[outcome].Add();
  received_bytes_.Add(static_cast<double>(bytes));
}

void PacsMetrics::CountWebRequest(WebRequest request, WebOutcome outcome) const {
  web_requests_[static_cast<size_t>(request)][outcome].Add();
}

void PacsMetrics::CountImport(ImportOutcome outcome, std::chrono::nanoseconds elapsed) const {
  imports_[outcome].Add();
  if (outcome == ImportOutcome::kDone) import_seconds_.Observe(Seconds(elapsed));
}

void PacsMetrics::Set(const PacsSample& sample) const {
  open_associations_.Set(static_cast<double>(sample.associations));
  max_associations_.Set(static_cast<double>(sample.max_associations));
  spool_bytes_.Set(static_cast<double>(sample.spool_bytes));
  max_spool_bytes_.Set(static_cast<double>(sample.max_spool_bytes));
  spool_instances_.Set(static_cast<double>(sample.spool_instances));
  made_instances_.Set(static_cast<double>(sample.made_instances));
  unmade_instances_.Set(static_cast<double>(sample.unmade_instances));
  imports_running_.Set(static_cast<double>(sample.imports_running));
  imports_waiting_.Set(static_cast<double>(sample.imports_waiting));
}

}  // namespace intrawarp::server
